// BullMQ through enqueue, lease and acknowledge, with its whole-queue limiter on (it has no groups).
//
//   node bullmq.mjs PORT JOBS PAYLOAD_BYTES bulk|single
//
// Prints one line of JSON: seconds spent enqueueing and processing. Run from target/queue-bench,
// where the packages are. The limiter's limit is never reached: what is measured is its cost.

import { createRequire } from "node:module";

const require = createRequire(process.cwd() + "/");
const { Queue, Worker } = require("bullmq");

const [port, jobs, bytes, mode] = process.argv.slice(2);
const count = Number(jobs);
const connection = { host: "127.0.0.1", port: Number(port), maxRetriesPerRequest: null };
const payload = { text: "x".repeat(Number(bytes)) };
const options = { removeOnComplete: true, removeOnFail: true, attempts: 3 };
const PRODUCERS = 64;
const BATCH = 100;

const queue = new Queue("bench", { connection, defaultJobOptions: options });
await queue.waitUntilReady();

async function produceSingly() {
  let next = 0;
  const produce = async () => {
    while (next++ < count) await queue.add("job", payload);
  };
  await Promise.all(Array.from({ length: PRODUCERS }, produce));
}

async function produceInBulk() {
  for (let done = 0; done < count; done += BATCH) {
    const size = Math.min(BATCH, count - done);
    await queue.addBulk(Array.from({ length: size }, () => ({ name: "job", data: payload })));
  }
}

const seconds = async (work) => {
  const start = process.hrtime.bigint();
  await work();
  return Number(process.hrtime.bigint() - start) / 1e9;
};

const enqueue_s = await seconds(mode === "bulk" ? produceInBulk : produceSingly);

const process_s = await seconds(
  () =>
    new Promise((resolve, reject) => {
      let done = 0;
      const worker = new Worker("bench", async () => {}, {
        connection,
        concurrency: 64,
        limiter: { max: 1_000_000_000, duration: 1_000 },
      });
      worker.on("completed", () => {
        if (++done === count) resolve(worker.close());
      });
      worker.on("error", reject);
    }),
);

console.log(JSON.stringify({ jobs: count, enqueue_s, process_s }));
await queue.close();
process.exit(0);
