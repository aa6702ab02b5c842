export { Reservation, Tollway, type Options } from "./client.js";
export { Rejected, TollwayError, Unavailable, type Charge, type ChargeVerdict, type Limit, type OnFailure, type OwnQuota, type Said, type Verdict } from "./words.js";
export type { LimitOptions } from "./refusal.js";
export { type CallerOptions } from "./caller.js";
export { GiveUp, JobFailed, LeaseLost, RetryLater, type Enqueued, type Job, type NewJob, type Payload, type Refusal } from "./jobs.js";
export { Lease, Queue } from "./queue.js";
export { Worker, type Handler, type WorkerOptions } from "./worker.js";
