//! `GET {queue}/events`: jobs that are done or dead, as they end.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::time::Duration;

use bytes::Bytes;
use tollway_queue::{EndMark, Ended, Group, Job, Queue, QueueName};

use super::super::event_stream::{self, Viewer};
use super::super::problem::Trouble;
use super::super::request::{Request, decoded};
use super::shown_to;
use super::wire::{self, Shown};
use crate::auth::Role;
use crate::channel_body::ChannelBody;
use crate::worker::Worker;

/// Jobs of one page: what is held for a viewer is a page, whatever their results are.
const PAGE: usize = 16;
/// How often a viewer hears that the stream lives, if nothing else.
const QUIET_MAX: Duration = Duration::from_secs(15);

/// Jobs of the queue that ended after the mark in `Last-Event-ID` or `after`, or from now on; with
/// `group` those of that group.
pub(crate) async fn events(
    worker: &Worker,
    request: &Request<'_>,
    name: &str,
    role: Role,
) -> Result<ChannelBody, Trouble> {
    let shown = shown_to(Some(role));
    request.expect_query(&["after", "group"])?;
    let name = decoded(name).ok_or(Trouble::NotFound)?;
    let queues = worker.service.queues().ok_or(Trouble::NotFound)?;
    let queue = queues.queue(QueueName::new(&name)?);
    let group = request.query_text("group")?.map(|group| Group::new(&group)).transpose()?;
    // Who comes again says where it was; the address still says where it began.
    let last = request.fields.field("last-event-id").map(String::from_utf8_lossy);
    let after = last.filter(|last| !last.is_empty()).or(request.parameter("after").map(Cow::from));
    // Whether there is such a queue is to be said by a status.
    let begun = async {
        let mark = match after {
            Some(mark) => mark.parse::<EndMark>()?,
            None => queue.ended(None, 0).await?.mark,
        };
        queue.describe().await.map(|_| mark)
    };
    let after = match begun.await {
        Err(error) => return Err(Trouble::Queue(queues.told(queue.name(), error).await)),
        Ok(mark) => mark,
    };
    event_stream::open(worker, |viewer| feed(viewer, queue, group, after, shown))
}

async fn feed(
    viewer: Viewer,
    queue: Queue,
    group: Option<Group>,
    mut after: EndMark,
    shown: Shown,
) {
    let mut next = format!("retry: 1000\nid: {after}\n\n");
    while viewer.send(Bytes::from(next)).await {
        let ended = tokio::select! {
            ended = queue.wait_for_ends(after, PAGE) => Some(ended),
            () = tokio::time::sleep(QUIET_MAX) => None,
            () = viewer.service.waits_over() => return,
            () = viewer.left() => return,
        };
        if viewer.is_over() {
            return;
        }
        next = match ended {
            Some(Ok(Ended { jobs, mark })) => {
                after = mark;
                let mut page = String::new();
                let is_asked_for = |job: &&Job| group.as_ref().is_none_or(|it| job.group == *it);
                jobs.iter().filter(is_asked_for).for_each(|job| put(&mut page, job, shown));
                // Nothing of interest: the viewer goes on behind it all the same.
                if page.is_empty() { format!("id: {mark}\n\n") } else { page }
            }
            // The viewer comes again, and is told by a status.
            Some(Err(_)) => return,
            None => ":\n\n".to_owned(),
        };
    }
}

fn put(page: &mut String, job: &Job, shown: Shown) {
    let Some(mark) = job.end_mark() else { return };
    let told = wire::job(job, shown);
    let event = told["state"].as_str().unwrap_or_default();
    let _ = write!(page, "id: {mark}\nevent: {event}\ndata: {told}\n\n");
}
