// The real service, started and stopped by the tests, and the load on it.

import { spawn } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import http from "node:http";
import { connect, createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

const binary = process.env.TOLLWAY_BIN ?? fileURLToPath(new URL("../../../../target/release/tollway", import.meta.url));

export async function freePort() {
  const server = createServer();
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address();
  await new Promise((resolve) => server.close(resolve));
  return port;
}

/** Waits until `condition` is true, within a bound. */
export async function eventually(what, condition) {
  const deadline = Date.now() + 30_000;
  for (;;) {
    const value = await condition();
    if (value) return value;
    if (Date.now() > deadline) throw new Error(`still not: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 25));
  }
}

export class Service {
  #child = null;
  /** What it has logged. */
  log = "";
  /** What else it is started with. */
  args = [];

  constructor(port, toml, env = {}) {
    this.folder = mkdtempSync(join(tmpdir(), "tollway-e2e-"));
    this.port = port;
    this.url = `http://127.0.0.1:${port}`;
    this.env = env;
    writeFileSync(join(this.folder, "tollway.toml"), toml);
  }

  static async start(toml, env) {
    const service = new Service(await freePort(), toml, env);
    await service.start();
    return service;
  }

  async start(env = this.env) {
    this.env = env;
    const args = ["serve", "--config", join(this.folder, "tollway.toml"), "--http", `127.0.0.1:${this.port}`, "--grpc", "off", "--resp", "off", ...this.args];
    this.#child = spawn(binary, args, { env: { ...process.env, ...env }, stdio: ["ignore", "ignore", "pipe"] });
    this.#child.stderr.on("data", (piece) => {
      this.log += piece;
      process.stderr.write(piece);
    });
    await eventually("the service answers", async () => (await this.request("GET", "/healthz").catch(() => null))?.status === 200);
  }

  async stop() {
    const child = this.#child;
    this.#child = null;
    if (!child) return;
    const ended = new Promise((resolve) => child.once("exit", resolve));
    child.kill("SIGKILL");
    await ended;
  }

  async dispose() {
    await this.stop();
    rmSync(this.folder, { recursive: true, force: true });
  }

  request(method, path, body, token) {
    return new Promise((resolve, reject) => {
      const headers = { "content-type": "application/json", ...(token && { authorization: `Bearer ${token}` }) };
      const request = http.request(`${this.url}${path}`, { method, headers }, (answer) => {
        let text = "";
        answer.on("data", (piece) => (text += piece));
        answer.on("end", () => resolve({ status: answer.statusCode, headers: answer.headers, text }));
      });
      request.on("error", reject);
      request.end(body === undefined ? undefined : JSON.stringify(body));
    });
  }

  async check(policy, key, times = 1, token) {
    for (let sent = 0; sent < times; sent += 500) {
      const requests = Array.from({ length: Math.min(500, times - sent) }, () => ({ policy, key }));
      const answer = await this.request("POST", "/v1/check-batch", { requests }, token);
      if (answer.status !== 200) throw new Error(`${answer.status}: ${answer.text}`);
    }
  }
}

const answers = (port) => new Promise((resolve) => {
  const socket = connect(port, "127.0.0.1", () => resolve(true));
  socket.on("error", () => resolve(false));
  socket.on("connect", () => socket.destroy());
});

/** A Redis server on this port; what is returned kills it. */
export async function redis(port) {
  const child = spawn("redis-server", ["--port", String(port), "--bind", "127.0.0.1", "--save", "", "--daemonize", "no"], { stdio: "ignore" });
  await eventually("redis answers", () => answers(port));
  return async () => {
    if (child.exitCode !== null || child.signalCode !== null) return;
    const ended = new Promise((resolve) => child.once("exit", resolve));
    child.kill("SIGKILL");
    await ended;
  };
}

/** A command of the binary that says where it listens in its first line. */
export class Program {
  static async start(args, env = {}) {
    const program = new Program();
    program.child = spawn(binary, args, { env: { ...process.env, ...env }, stdio: ["ignore", "pipe", "inherit"] });
    let said = "";
    program.child.stdout.on("data", (piece) => (said += piece));
    const found = await eventually(`${args[0]} listens`, () => {
      if (program.child.exitCode !== null) throw new Error(`${args[0]} ended: ${said}`);
      return said.match(/http:\/\/\S+/);
    });
    program.url = found[0];
    return program;
  }

  async stop() {
    if (this.child.exitCode !== null || this.child.signalCode !== null) return;
    const ended = new Promise((resolve) => this.child.once("exit", resolve));
    this.child.kill("SIGKILL");
    await ended;
  }
}
