// Everyday calls of @octokit/core, unmodified, through the proxy to the fake upstream: PROXY FAKE.
import assert from 'node:assert/strict';
import { Octokit } from '@octokit/core';

const [, , proxy, fake] = process.argv;
const octokit = new Octokit({ baseUrl: proxy, auth: 'one' });
const repository = { owner: 'octocat', repo: 'hello' };
const { data: repo } = await octokit.request('GET /repos/{owner}/{repo}', repository);
assert.equal(repo.full_name, 'octocat/hello');
const { data: issues } = await octokit.request('GET /repos/{owner}/{repo}/issues', repository);
assert.equal(issues[0].number, 1);
const { data: user } = await octokit.request('GET /user');
assert.equal(user.login, 'judged');
const made = await octokit.request('POST /repos/{owner}/{repo}/issues', {
  ...repository, title: 'A "title"', body: null,
});
assert.deepEqual([made.status, made.data.title], [201, 'A "title"']);
const found = await octokit.request('GET /search/issues', { q: 'x' });
assert.equal(found.data.total_count, 0);

const status = async (promise) => {
  const error = await promise.then(() => assert.fail('it was served'), (refused) => refused);
  assert.equal(error.name, 'HttpError');
  return [error.status, error.message];
};
const missing = octokit.request('GET /repos/{owner}/{repo}', { owner: 'a', repo: '404' });
assert.match(String(await status(missing)), /^404,Not Found/);
const revoked = new Octokit({ baseUrl: proxy, auth: 'revoked' });
assert.match(String(await status(revoked.request('GET /user'))), /^401,Bad credentials/);

// The proxy would not let this happen.
const fault = JSON.stringify({ do: 'set-limit', bucket: 'core', limit: 1 });
await fetch(`${fake}/_fake/faults`, { method: 'POST', body: fault });
const hasty = new Octokit({ baseUrl: fake, auth: 'two' });
await hasty.request('GET /user');
assert.match(String(await status(hasty.request('GET /user'))), /^403,API rate limit exceeded/);
console.log('read everything');
