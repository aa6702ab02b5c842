// A bot on @discordjs/rest: COUNT messages over CHANNELS channels through the proxy, all at once.
import { REST } from '@discordjs/rest';

const [, , api, count, channels] = process.argv;
const rest = new REST({ api: `${api}/api`, version: '10', globalRequestsPerSecond: Infinity });
rest.setToken('one');
let limited = 0;
rest.on('rateLimited', () => { limited += 1; });
const jobs = [];
for (let number = 0; number < Number(count); number += 1) {
  const query = new URLSearchParams({ tag: String(number) });
  jobs.push(rest.post(`/channels/${number % Number(channels)}/messages`, { body: { content: 'x' }, query }));
}
const done = await Promise.allSettled(jobs);
const failed = done.filter((job) => job.status === 'rejected').map((job) => String(job.reason));
const user = await rest.get('/users/@me');
console.log(JSON.stringify({ served: done.length - failed.length, failed, limited, username: user.username }));
