//! The discrete-event world: clients and a server under virtual time.
//!
//! Everything that happens is an event in one heap, ordered by time and then by the order in which
//! it was scheduled, so nothing depends on the machine, a thread or a wall clock. Every process has
//! a generator of its own: adding a client does not change what the others draw.
//!
//! ```text
//!  task   want ─► turn ─┬─ At ──► Wake ─────────┐
//!                       └─ Queue ► (FIFO) Open ─┴► send ─► Arrive ─► Reply ─► want
//!  server                                                   decides
//!  faults                              lost, slow, 5xx ─────────────► GiveUp ─► want
//! ```
//!
//! A simulated day of 25 busy threads is about 325,000 events, some 30 ms of work.

mod agenda;
mod process;

use tollway_upstream::pace::{Dice, Feedback, Outcome};

use crate::fault::Faults;
use crate::scenario::Scenario;
use crate::simulated_server::Server;
use crate::strategy::{NextSend, StrategyChoice};
use agenda::{Agenda, Event};
use process::{Process, Task};

/// What a request came to, as the server saw it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Exchange {
    /// When the server decided, in nanoseconds since the start.
    pub at_ns: u64,
    /// Which process asked.
    pub process: usize,
    /// Which task asked, counted over all processes.
    pub task: usize,
    /// Units asked for.
    pub cost: u64,
    /// How it ended.
    pub outcome: Outcome,
    /// How long the task had waited before it sent the request.
    pub waited_ns: u64,
    /// When the answer reaches the client, unless it gets lost.
    pub answered_ns: u64,
}

/// Whoever watches a run.
pub trait Witness {
    /// The server decided about a request.
    fn on_exchange(&mut self, exchange: &Exchange);

    /// A regular look at the world, `at_ns` after the start: the server's level, and the pause
    /// of each process between two requests (none while it is not there).
    fn on_tick(
        &mut self,
        _at_ns: u64,
        _level: u64,
        _pauses_ns: &mut dyn Iterator<Item = Option<u64>>,
    ) {
    }
}

/// A scenario under way.
pub struct World {
    now_ns: u64,
    end_ns: u64,
    tick_ns: u64,
    agenda: Agenda,
    server: Server,
    faults: Faults,
    fault_dice: Dice,
    processes: Vec<Process>,
    tasks: Vec<Task>,
    events: u64,
}

impl World {
    /// The beginning of `scenario`, its clients following `strategy`.
    pub fn new(scenario: &Scenario, strategy: impl Into<StrategyChoice>, seed: u64) -> Self {
        let strategy = strategy.into();
        let dice = Dice::new(seed);
        let mut world = Self {
            now_ns: 0,
            end_ns: scenario.length_ns(),
            tick_ns: u64::MAX,
            agenda: Agenda::default(),
            server: Server::new(&scenario.server, dice.child(u64::MAX)),
            faults: scenario.faults,
            fault_dice: dice.child(u64::MAX - 1),
            processes: Vec::new(),
            tasks: Vec::new(),
            events: 0,
        };
        for (index, client) in scenario.each_process().enumerate() {
            let mut process = Process::new(
                scenario,
                client,
                &strategy,
                dice.child(index as u64),
                world.tasks.len(),
            );
            world.tasks.extend((0..client.threads).map(|_| Task::new(index)));
            process.tasks.end = world.tasks.len();
            world.agenda.put(process.joins_ns, Event::Join(index as u32));
            if let Some(leaves_ns) = process.leaves_ns {
                world.agenda.put(leaves_ns, Event::Leave(index as u32));
            }
            world.processes.push(process);
        }
        world
    }

    /// Lets the witness look at the world every `tick_ns`.
    #[must_use]
    pub fn with_ticks(mut self, tick_ns: u64) -> Self {
        self.tick_ns = tick_ns.max(1);
        self.agenda.put(self.tick_ns, Event::Tick);
        self
    }

    /// Lets everything happen until the scenario ends.
    pub fn run(&mut self, witness: &mut impl Witness) {
        self.run_until(self.end_ns, witness);
    }

    /// Lets everything happen until `until_ns`, at the latest until the scenario ends.
    pub fn run_until(&mut self, until_ns: u64, witness: &mut impl Witness) {
        let until_ns = until_ns.min(self.end_ns);
        while let Some((at_ns, event)) = self.agenda.next_until(until_ns) {
            self.now_ns = at_ns;
            self.events += 1;
            self.happen(event, witness);
        }
        self.now_ns = until_ns;
    }

    /// Events so far: the measure of the simulator's work.
    pub const fn events(&self) -> u64 {
        self.events
    }

    fn happen(&mut self, event: Event, witness: &mut impl Witness) {
        match event {
            Event::Join(process) => self.join(process as usize),
            Event::Leave(process) => self.leave(process as usize),
            Event::Want(task, turn) if self.is_current(task, turn) => self.want(task as usize),
            Event::Wake(task, turn) if self.is_current(task, turn) => self.send(task as usize),
            Event::Open(process, turn) => self.open(process as usize, turn),
            Event::Arrive(task, turn) if self.is_current(task, turn) => {
                self.arrive(task as usize, witness);
            }
            Event::Reply(task, turn) if self.is_current(task, turn) => self.reply(task as usize),
            Event::GiveUp(task, turn) if self.is_current(task, turn) => {
                self.give_up(task as usize);
            }
            Event::Tick => self.tick(witness),
            // What a task no longer waits for: it left, or gave up before the answer came.
            _ => {}
        }
    }

    fn is_current(&self, task: u32, turn: u32) -> bool {
        self.tasks[task as usize].turn == turn
    }

    fn join(&mut self, index: usize) {
        let process = &mut self.processes[index];
        process.present = true;
        process.join(self.now_ns);
        for task in process.tasks.clone() {
            self.want(task);
        }
    }

    fn leave(&mut self, index: usize) {
        let process = &mut self.processes[index];
        process.present = false;
        process.queue.clear();
        process.gate_turn += 1;
        for task in process.tasks.clone() {
            self.tasks[task].turn += 1;
        }
    }

    /// A task would like to send; it waits for its turn.
    fn want(&mut self, index: usize) {
        let task = &mut self.tasks[index];
        let process = &mut self.processes[task.process];
        if let Some(on_ns) = process.wakes_ns(self.now_ns) {
            return self.agenda.put(on_ns, Event::Want(index as u32, task.turn));
        }
        if task.wanted_ns.is_none() {
            task.wanted_ns = Some(self.now_ns);
        }
        let local = process.local(self.now_ns);
        match process.strategy.next_send(index - process.tasks.start, task.retry, local) {
            NextSend::At(at_ns) if at_ns <= local => self.send(index),
            NextSend::At(at_ns) => {
                let at_ns = self.now_ns.saturating_add(at_ns - local);
                self.agenda.put(at_ns, Event::Wake(index as u32, task.turn));
            }
            NextSend::Later(at_ns) => {
                let at_ns = self.now_ns.saturating_add(at_ns.saturating_sub(local));
                self.agenda.put(at_ns, Event::Want(index as u32, task.turn));
            }
            NextSend::Queue => {
                process.queue.push_back(index);
                let process = task.process;
                self.open_gate(process);
            }
        }
    }

    fn open(&mut self, index: usize, turn: u32) {
        if self.processes[index].gate_turn == turn {
            self.processes[index].gate_ns = None;
            self.open_gate(index);
        }
    }

    /// Lets those at the head of the process's queue go whose time has come.
    fn open_gate(&mut self, index: usize) {
        loop {
            let process = &mut self.processes[index];
            let Some(&task) = process.queue.front() else { return };
            let local = process.local(self.now_ns);
            let gate = process.strategy.gate(process.cost, local);
            if gate > local {
                let at_ns = self.now_ns.saturating_add(gate - local);
                if process.gate_ns != Some(at_ns) {
                    process.gate_ns = Some(at_ns);
                    process.gate_turn += 1;
                    self.agenda.put(at_ns, Event::Open(index as u32, process.gate_turn));
                }
                return;
            }
            process.queue.pop_front();
            self.send(task);
        }
    }

    fn send(&mut self, index: usize) {
        let task = &mut self.tasks[index];
        let process = &mut self.processes[task.process];
        let local = process.local(self.now_ns);
        process.strategy.on_send(index - process.tasks.start, process.cost, local);
        task.sent_ns = self.now_ns;
        task.waited_ns = self.now_ns - task.wanted_ns.take().unwrap_or(self.now_ns);
        let trip_ns = process.latency.draw(&mut process.dice);
        task.answered_ns = self.now_ns.saturating_add(trip_ns);
        if self.faults.loses_request(&mut self.fault_dice) {
            task.answered_ns = u64::MAX;
        } else {
            let arrives_ns = self.now_ns.saturating_add(trip_ns / 2);
            self.agenda.put(arrives_ns, Event::Arrive(index as u32, task.turn));
        }
        let give_up_ns = self.now_ns.saturating_add(self.faults.timeout_ns);
        if task.answered_ns > give_up_ns {
            self.agenda.put(give_up_ns, Event::GiveUp(index as u32, task.turn));
        }
    }

    fn arrive(&mut self, index: usize, witness: &mut impl Witness) {
        let task = &mut self.tasks[index];
        let Process { cost, ref owner, .. } = self.processes[task.process];
        task.answer = if self.faults.breaks_server(&mut self.fault_dice) {
            Feedback::bare(Outcome::Failed)
        } else {
            self.server.decide(cost, owner, self.now_ns)
        };
        witness.on_exchange(&Exchange {
            at_ns: self.now_ns,
            process: task.process,
            task: index,
            cost: cost.get(),
            outcome: task.answer.outcome,
            waited_ns: task.waited_ns,
            answered_ns: task.answered_ns,
        });
        let give_up_ns = task.sent_ns.saturating_add(self.faults.timeout_ns);
        if self.faults.loses_answer(&mut self.fault_dice) {
            self.agenda.put(give_up_ns.max(self.now_ns), Event::GiveUp(index as u32, task.turn));
        } else if task.answered_ns <= give_up_ns {
            self.agenda.put(task.answered_ns, Event::Reply(index as u32, task.turn));
        }
    }

    fn reply(&mut self, index: usize) {
        let task = &mut self.tasks[index];
        let process = &mut self.processes[task.process];
        let local = process.local(self.now_ns);
        process.strategy.on_response(index - process.tasks.start, &task.answer, local);
        task.retry = task.answer.outcome == Outcome::Limited;
        self.go_on(index);
    }

    fn give_up(&mut self, index: usize) {
        let task = &mut self.tasks[index];
        let process = &mut self.processes[task.process];
        let local = process.local(self.now_ns);
        process.strategy.on_lost(index - process.tasks.start, local);
        task.retry = false;
        self.go_on(index);
    }

    /// The task is done with a request: it thinks, then wants the next one.
    fn go_on(&mut self, index: usize) {
        let task = &mut self.tasks[index];
        task.turn += 1;
        let owner = task.process;
        let think_ns = self.processes[owner].think_ns;
        if think_ns == 0 || task.retry {
            self.want(index);
        } else {
            let turn = task.turn;
            let wants_ns = self.now_ns.saturating_add(think_ns);
            self.agenda.put(wants_ns, Event::Want(index as u32, turn));
        }
        // What the answer said may let somebody else in the queue go earlier.
        self.open_gate(owner);
    }

    fn tick(&mut self, witness: &mut impl Witness) {
        let level = self.server.level(self.now_ns);
        let mut pauses = self
            .processes
            .iter()
            .map(|process| process.present.then(|| process.strategy.pause_ns()));
        witness.on_tick(self.now_ns, level, &mut pauses);
        self.agenda.put(self.now_ns.saturating_add(self.tick_ns), Event::Tick);
    }
}
