// @octokit/core, unmodified, that makes many calls at once through a proxy: WHAT COUNT ADDRESS, as
// clients.py takes them, and the same JSON at the end.
import { Octokit } from '@octokit/core';

const [, , what, count, baseUrl] = process.argv;
const octokit = new Octokit({ baseUrl, auth: 'one' });
const calls = {
  'octokit.repo': () => octokit.request('GET /repos/{owner}/{repo}', { owner: 'a', repo: 'b' }),
  'octokit.issue': (number) => octokit.request('POST /repos/{owner}/{repo}/issues', {
    owner: 'a', repo: 'b', title: `Issue ${number}`,
  }),
};
const jobs = Array.from({ length: Number(count) }, (_, number) => calls[what](number));
const done = await Promise.allSettled(jobs);
const failed = done.filter((job) => job.status === 'rejected').map((job) => String(job.reason));
console.log(JSON.stringify({ served: done.length - failed.length, failed: failed.slice(0, 5) }));
