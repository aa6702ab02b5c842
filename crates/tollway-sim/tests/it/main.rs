//! The simulator and, in it, the strategies: behaviour over simulated days.

// What rate_throttle_client wanted to test and could not: its list, by name.
mod behaviour;
// The report in a real browser.
mod browser;
// The same seed, the same bits.
mod determinism;
// The published figures of rate_throttle_client.
mod rate_throttle_client;
// A floor beside clients that do not pace.
mod mixed;
// Strategies of one's own: programs that are asked, tables of pauses.
mod own_strategies;
// Charts, tables and the report, compared with golden files.
mod pictures;
// What `tollway proxy --pace` does: the budgets' queue with the pacer behind it.
mod proxied;
// Ticket pacing where little goes as planned: faults, clocks, noise, beliefs, unequal clients.
mod robustness;
// Scenario files: what is read and what is refused.
mod scenario_files;
// A server that shares its quota among owners.
mod shares;
// Ticket pacing held to its promises, on seeds that it was not tuned on.
mod ticket;
// What the tests above share: who was accepted when.
mod log;
