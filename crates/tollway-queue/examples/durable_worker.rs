//! A durable queue in a file, and a worker that keeps the limit of each group.
//!
//! `cargo run -p tollway-queue --example durable_worker [FILE]`. Stop it while jobs wait and run it
//! again on the same file: it goes on where it was.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::sync::Arc;
use std::time::Duration;

use tollway_memory::SystemClock;
use tollway_queue::{
    Embedded, Group, NewJob, Outcome, Queue, QueueName, QueueSettings, Task, Worker, handler_fn,
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args_os().nth(1).unwrap_or_else(|| "jobs.redb".into());
    let queues = Arc::new(Embedded::open(path)?);
    let queue = Queue::new(queues, Arc::new(SystemClock::new()), QueueName::new("roles")?);
    // In every group two calls at once, each slot free again a second after the response.
    queue.put(QueueSettings::with_limit("slots 2/1s".parse()?)).await?;
    for number in 0..8 {
        let group = Group::new(&format!("guild {}", number % 2))?;
        let told = queue.enqueue(NewJob::new(group, format!("add role {number}"))).await?;
        println!("job {} starts by {:?}", told.id, told.ready.map(|ready| ready.latest));
    }
    let handler = handler_fn(|task: Task| async move {
        println!("{}: {:?}", task.lease().group, task.lease().payload);
        Outcome::Done { result: None }
    });
    let stop = tokio::time::sleep(Duration::from_secs(3));
    let summary = Worker::new(queue).concurrency(8).run(handler, stop).await?;
    println!("{} jobs done", summary.settled);
    Ok(())
}
