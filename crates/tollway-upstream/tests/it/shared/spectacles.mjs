// A real Spectacles client for the tests: sends requests to a loopback upstream, and tells of each.
//
//   node spectacles.mjs <modules> <redis port> <prefix> <upstream port> <endpoint> <requests> <clients>
import { createRequire } from 'node:module';
import http from 'node:http';

const [modules, redisPort, prefix, port, endpoint, requests, clients] = process.argv.slice(2);
const require = createRequire(`${modules}/`);
const { Rest, RedisMutex } = require('@spectacles/rest');
const Redis = require('ioredis');

const rests = Array.from({ length: Number(clients) }, () => {
  const redis = new Redis(Number(redisPort), '127.0.0.1');
  const mutex = new RedisMutex(redis, prefix);
  const agent = new http.Agent({ keepAlive: true });
  const rest = new Rest('t', { base: `http://127.0.0.1:${port}`, version: 6, agent, mutex });
  return { redis, rest };
});
const start = Date.now();
await Promise.all(Array.from({ length: Number(requests) }, async (_, index) => {
  const { rest } = rests[index % rests.length];
  await rest.post(endpoint, undefined);
  console.log(`done ${Date.now() - start}`);
}));
for (const { redis } of rests) redis.disconnect();
console.log(`all ${Date.now() - start}`);
process.exit(0);
