//! Runs jobs no faster than their group's limit allows: two per group at once, then one a second.

#![allow(clippy::print_stdout, reason = "an example talks to a person")]

use std::sync::Arc;

use tollway::SystemClock;
use tollway::queue::{
    Embedded, Group, NewJob, Outcome, Queue, QueueName, QueueSettings, Task, Worker, handler_fn,
};

#[tokio::main]
pub(crate) async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let backend = Arc::new(Embedded::memory()); // or Embedded::open("queues.redb")?
    let queue = Queue::new(backend, Arc::new(SystemClock::new()), QueueName::new("mail")?);
    queue.put(QueueSettings::with_limit("gcra 1/1s burst 2".parse()?)).await?;
    for number in 1..=3 {
        let job = NewJob::new(Group::new("customer 42")?, format!("letter {number}"));
        println!("enqueued: {:?}", queue.enqueue(job).await?);
    }

    let (done, mut jobs) = tokio::sync::mpsc::unbounded_channel();
    let handler = handler_fn(move |task: Task| {
        let done = done.clone();
        async move {
            println!("sent: {}", String::from_utf8_lossy(&task.lease().payload));
            done.send(()).expect("the program waits for three jobs");
            Outcome::Done { result: None }
        }
    });
    let stop = async move {
        for _ in 1..=3 {
            jobs.recv().await;
        }
    };
    Worker::new(queue).run(handler, stop).await?;
    Ok(())
}
