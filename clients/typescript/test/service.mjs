// The real service on a free port, for each test file.

import { spawn } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { after } from "node:test";
import { pathToFileURL } from "node:url";

/** A module of the built package. */
export const built = (file) => import(pathToFileURL(join(process.env.TOLLWAY_TS_BUILT, file)).href);

/** Longer than anything takes on a busy machine. */
export const PATIENCE = 30_000;

/** What is to be ended after the tests of a file, the last first. */
export const endings = [];
after(async () => {
  for (const end of endings.reverse()) await end();
});

/** `tollway serve` with these rules; its URL. */
export async function serve(rules, env = {}) {
  const folder = mkdtempSync(join(tmpdir(), "tollway-ts-"));
  const config = join(folder, "tollway.toml");
  writeFileSync(config, rules);
  const args = ["serve", "--config", config, "--http", "127.0.0.1:0", "--grpc", "off", "--resp", "off"];
  const child = spawn(process.env.TOLLWAY_BIN, args, { env: { ...process.env, ...env }, stdio: ["ignore", "pipe", "ignore"] });
  endings.push(() => {
    child.kill("SIGKILL");
    rmSync(folder, { recursive: true, force: true });
  });
  for await (const line of createInterface({ input: child.stdout })) {
    const [name, where] = line.split(/\s+/);
    if (name === "HTTP") return `http://${where}`;
  }
  throw new Error("the service did not start");
}
