// An upstream that limits by the hour, the proxy in front of it, and a client.

import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { freePort, Program } from "./service.mjs";

/** Discord's fields, with windows that do not end while somebody looks, and a name that is markup. */
const LIMITS = `
fields = [
    ["X-RateLimit-Limit", "limit"],
    ["X-RateLimit-Remaining", "remaining"],
    ["X-RateLimit-Reset", "reset-epoch-decimal"],
    ["X-RateLimit-Reset-After", "reset-after-decimal"],
    ["X-RateLimit-Bucket", "=<img src=x onerror=window.owned=1>"],
]
[buckets]
history = { limit = 5, per = "1h", window = "fixed" }
[[routes]]
method = "GET"
path = "/channels/{+channel}/messages"
bucket = "history"
`;

export class LimitedUpstream {
  #hurry = new AbortController();
  #folder = mkdtempSync(join(tmpdir(), "tollway-e2e-"));

  static async start() {
    const self = new LimitedUpstream();
    self.listen = `127.0.0.1:${await freePort()}`;
    self.admin = `127.0.0.1:${await freePort()}`;
    writeFileSync(join(self.#folder, "upstream.toml"), LIMITS);
    self.fake = await Program.start(["fake-upstream", "--spec", join(self.#folder, "upstream.toml")]);
    await self.startProxy();
    return self;
  }

  async startProxy(env = {}) {
    this.proxy = await Program.start(["proxy", "--profile", "discord", "--upstream", this.fake.url, "--patience", "2h",
      "--listen", this.listen, "--admin", this.admin], env);
  }

  /** Asks through the proxy; a wait ends with the tests. */
  ask(channel) {
    return fetch(`http://${this.listen}/api/v10/channels/${channel}/messages`,
      { headers: { authorization: "Bot secret" }, signal: this.#hurry.signal });
  }

  async stop() {
    this.#hurry.abort();
    for (const program of [this.proxy, this.fake]) await program?.stop();
    rmSync(this.#folder, { recursive: true, force: true });
  }
}
