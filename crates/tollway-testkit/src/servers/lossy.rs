//! A way to a server on which answers can be lost, or late: what a retry must survive.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use super::Server;

/// A way to a server on which answers can be lost, or held back.
#[derive(Debug)]
pub struct LossyWay {
    /// Where it listens, on 127.0.0.1.
    pub port: u16,
    loses: Arc<AtomicBool>,
    held: Arc<Gate>,
}

/// Whether answers are held back.
#[derive(Debug, Default)]
struct Gate {
    is_shut: Mutex<bool>,
    changed: Condvar,
}

impl LossyWay {
    /// A way to this server, that loses nothing yet.
    pub fn to(server: &Server) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let loses = Arc::new(AtomicBool::new(false));
        let held = Arc::new(Gate::default());
        let (flag, gate, to) = (Arc::clone(&loses), Arc::clone(&held), server.port);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(("127.0.0.1", to)) else { continue };
                let (Ok(answers), Ok(asker)) = (server.try_clone(), client.try_clone()) else {
                    continue;
                };
                let (flag, gate) = (Arc::clone(&flag), Arc::clone(&gate));
                std::thread::spawn(move || pass(client, server, || false));
                std::thread::spawn(move || {
                    pass(answers, asker, || {
                        gate.wait();
                        flag.swap(false, Ordering::SeqCst)
                    })
                });
            }
        });
        Self { port, loses, held }
    }

    /// Loses the next answer, and the connection with it.
    pub fn lose_next(&self) {
        self.loses.store(true, Ordering::SeqCst);
    }

    /// Holds answers back, or lets them pass again. Questions pass in any case.
    pub fn hold(&self, is_held: bool) {
        *self.held.is_shut.lock().unwrap_or_else(PoisonError::into_inner) = is_held;
        self.held.changed.notify_all();
    }
}

impl Gate {
    fn wait(&self) {
        let mut is_shut = self.is_shut.lock().unwrap_or_else(PoisonError::into_inner);
        while *is_shut {
            is_shut = self.changed.wait(is_shut).unwrap_or_else(PoisonError::into_inner);
        }
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
