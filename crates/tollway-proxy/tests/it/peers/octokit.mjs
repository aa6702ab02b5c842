// A script on @octokit/core: COUNT requests to a route through the proxy, all at once.
import { Octokit } from '@octokit/core';

const [, , baseUrl, count, route] = process.argv;
const octokit = new Octokit({ baseUrl, auth: 'one' });
const jobs = [];
for (let number = 0; number < Number(count); number += 1) {
  jobs.push(octokit.request(`GET ${route}`, { q: 'x', tag: number }));
}
const done = await Promise.allSettled(jobs);
const failed = done.filter((job) => job.status === 'rejected').map((job) => String(job.reason));
const remaining = done[0].value?.headers['x-ratelimit-remaining'];
console.log(JSON.stringify({ served: done.length - failed.length, failed, remaining }));
