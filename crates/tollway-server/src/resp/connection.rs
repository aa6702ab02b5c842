//! One connection: read, answer, write, until somebody has enough.

use std::io;
use std::net::IpAddr;

use tokio::io::{AsyncRead, AsyncWrite};

use super::batch;
use super::encode::{Encoder, Version};
use super::session::Session;
use crate::client_stream::{ClientStream, Received};
use crate::drain::Stop;
use crate::front::Front;
use crate::worker::Worker;

/// Serves a client until it leaves, misbehaves, or the service stops.
///
/// # Errors
///
/// If the stream fails.
pub(crate) async fn serve<S>(
    worker: &Worker,
    stream: S,
    (id, peer): (u64, IpAddr),
    mut stop: Stop,
) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut session = Session::new(id, peer, worker);
    let mut client = ClientStream::new(worker, stream, Front::Resp);
    loop {
        let goes_on = match client.receive(&mut stop).await? {
            Received::Over => return Ok(()),
            Received::Stopped => Ok(false),
            received => {
                session.judge_by_current_tokens(worker);
                let mut out = worker.buffers.take_output();
                let goes_on = if received == Received::Full {
                    refuse(worker, &mut client, &mut out).await
                } else {
                    answer(worker, &mut session, &mut client, &mut out).await
                };
                worker.buffers.give_output(out);
                goes_on
            }
        };
        client.give_buffer();
        if !goes_on? {
            client.close().await;
            return Ok(());
        }
    }
}

/// Tells a client that there is no room for the rest of its command.
async fn refuse<S: AsyncRead + AsyncWrite + Unpin>(
    worker: &Worker,
    client: &mut ClientStream<'_, S>,
    out: &mut Vec<u8>,
) -> io::Result<bool> {
    worker.service.metrics().front(Front::Resp).rejected.add(1);
    Encoder::new(out, Version::Two).error("ERR too much is held for unfinished commands");
    client.send(out).await?;
    Ok(false)
}

/// Answers everything that has been read; whether the connection goes on.
async fn answer<S: AsyncRead + AsyncWrite + Unpin>(
    worker: &Worker,
    session: &mut Session,
    client: &mut ClientStream<'_, S>,
    out: &mut Vec<u8>,
) -> io::Result<bool> {
    loop {
        let progress = batch::answer(worker, session, client.input.bytes(), out).await;
        client.input.consume(progress.used);
        if progress.used > 0 && session.is_known() {
            client.input.has_asked();
        }
        if let Some(error) = progress.broken {
            worker.service.metrics().front(Front::Resp).rejected.add(1);
            Encoder::new(out, Version::Two).error(&format!("ERR {error}"));
        }
        if !client.send(out).await? {
            return Ok(false);
        }
        if progress.broken.is_some() || session.is_closing() {
            return Ok(false);
        }
        if !progress.more || client.input.is_empty() {
            return Ok(true);
        }
    }
}
