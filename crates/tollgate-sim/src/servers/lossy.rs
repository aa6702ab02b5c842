//! A way to a server on which an answer can be lost: what a retry must survive.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::Server;

/// A way to a server on which an answer can be lost.
#[derive(Debug)]
pub struct LossyWay {
    /// Where it listens, on 127.0.0.1.
    pub port: u16,
    loses: Arc<AtomicBool>,
}

impl LossyWay {
    /// A way to this server, that loses nothing yet.
    pub fn to(server: &Server) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let loses = Arc::new(AtomicBool::new(false));
        let (flag, to) = (Arc::clone(&loses), server.port);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(("127.0.0.1", to)) else { continue };
                let (Ok(answers), Ok(asker)) = (server.try_clone(), client.try_clone()) else {
                    continue;
                };
                let flag = Arc::clone(&flag);
                std::thread::spawn(move || pass(client, server, || false));
                std::thread::spawn(move || {
                    pass(answers, asker, || flag.swap(false, Ordering::SeqCst))
                });
            }
        });
        Self { port, loses }
    }

    /// Loses the next answer, and the connection with it.
    pub fn lose_next(&self) {
        self.loses.store(true, Ordering::SeqCst);
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, loses: impl Fn() -> bool) {
    let mut chunk = [0; 65_536];
    while let Ok(length @ 1..) = from.read(&mut chunk) {
        if loses() || to.write_all(&chunk[..length]).is_err() {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}
