// @discordjs/proxy as its documentation starts it. node rival.mjs UPSTREAM; prints where it listens.
import { createServer } from 'node:http';
import { proxyRequests } from '@discordjs/proxy';
import { REST } from '@discordjs/rest';

const api = new REST({
  api: `${process.argv[2]}/api`,
  rejectOnRateLimit: () => true,
  retries: 0,
  globalRequestsPerSecond: Infinity,
});
const server = createServer(proxyRequests(api));
server.listen(0, '127.0.0.1', () => console.log(`rival  http://127.0.0.1:${server.address().port}`));
// A client that hangs up in the middle of an answer, as every load generator does at its end, would end it.
process.on('unhandledRejection', () => {});
