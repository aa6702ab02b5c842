export { Reservation, Tollway, type Options } from "./client.js";
export { Rejected, TollwayError, Unavailable, type Charge, type ChargeVerdict, type OnFailure, type Verdict } from "./words.js";
export type { LimitOptions } from "./refusal.js";
