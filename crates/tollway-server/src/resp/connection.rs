//! One connection: read, answer, write, until somebody has enough.

use std::io;
use std::net::IpAddr;

use tokio::io::{AsyncRead, AsyncWrite};

use super::batch;
use super::encode::{Encoder, Version};
use super::session::Session;
use crate::buffers::{Input, Received};
use crate::drain::Stop;
use crate::metrics::Front;
use crate::worker::Worker;

/// Serves a client until it leaves, misbehaves, or the service stops.
///
/// # Errors
///
/// If the stream fails.
pub(crate) async fn serve<S>(
    worker: &Worker,
    mut stream: S,
    (id, peer): (u64, IpAddr),
    mut stop: Stop,
) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut session = Session::new(id, peer, worker);
    let mut input = worker.new_input();
    loop {
        let received = worker.receive(&mut stream, &mut input, &mut stop, Front::Resp).await?;
        let goes_on = match received {
            Received::Over => return Ok(()),
            Received::Stopped => Ok(false),
            received => {
                session.keep_up(worker);
                let mut out = worker.take_output();
                let goes_on = if received == Received::Full {
                    refuse(worker, &mut stream, &mut out).await
                } else {
                    answer(worker, &mut session, &mut stream, &mut input, &mut out).await
                };
                worker.give_output(out);
                goes_on
            }
        };
        worker.rest(&mut input);
        if !goes_on? {
            worker.part(&mut stream, &mut input).await;
            return Ok(());
        }
    }
}

/// Tells a client that there is no room for the rest of its command.
async fn refuse<S>(worker: &Worker, stream: &mut S, out: &mut Vec<u8>) -> io::Result<bool>
where
    S: AsyncWrite + Unpin,
{
    worker.service.metrics().front(Front::Resp).rejected.add(1);
    Encoder::new(out, Version::Two).error("ERR too much is held for unfinished commands");
    worker.send(stream, out, Front::Resp).await?;
    Ok(false)
}

/// Answers everything that has been read; whether the connection goes on.
async fn answer<S>(
    worker: &Worker,
    session: &mut Session,
    stream: &mut S,
    input: &mut Input,
    out: &mut Vec<u8>,
) -> io::Result<bool>
where
    S: AsyncWrite + Unpin,
{
    loop {
        let progress = batch::answer(worker, session, input.bytes(), out).await;
        input.consume(progress.used);
        if progress.used > 0 && session.is_known() {
            input.has_asked();
        }
        if let Some(error) = progress.broken {
            worker.service.metrics().front(Front::Resp).rejected.add(1);
            Encoder::new(out, Version::Two).error(&format!("ERR {error}"));
        }
        if !worker.send(stream, out, Front::Resp).await? {
            return Ok(false);
        }
        if progress.broken.is_some() || session.is_closing() {
            return Ok(false);
        }
        if !progress.more || input.is_empty() {
            return Ok(true);
        }
    }
}
