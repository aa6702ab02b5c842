//! A disk that fails on purpose: what was not synced may be lost when the power goes.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use redb::StorageBackend;
use tollway_core::dice::Dice;
use tollway_journal::Reserve;

/// How a disk fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It does not.
    None,
    /// The process dies at this write: all before it are in the page cache and survive.
    Kill(u64),
    /// The power goes at this write: of what was not synced, any part may be lost.
    PowerLoss(u64),
    /// This write fails, and the others do not.
    Once(u64),
    /// It grows no more.
    Full,
}

#[derive(Debug)]
struct State {
    fault: Fault,
    written: u64,
    dead: bool,
    /// What is on the platter, and what is written but not synced.
    synced: Vec<u8>,
    cached: Vec<u8>,
    unsynced: Vec<(u64, Vec<u8>)>,
    /// Bytes by which a full disk grows all the same, since they were set aside.
    given_up: u64,
}

/// A disk, shared by the storages that are made on it.
#[derive(Clone, Debug)]
pub struct Disk(Arc<Mutex<State>>);

impl Disk {
    /// An empty one.
    pub fn new() -> Self {
        Self(Arc::new(Mutex::new(State {
            fault: Fault::None,
            written: 0,
            dead: false,
            synced: Vec::new(),
            cached: Vec::new(),
            unsynced: Vec::new(),
            given_up: 0,
        })))
    }

    /// Space on it that is set aside.
    pub fn reserve(&self, bytes: u64) -> SetAside {
        SetAside { disk: self.clone(), bytes }
    }

    /// Lets it fail so from now on.
    pub fn set(&self, fault: Fault) {
        let mut state = self.state();
        (state.fault, state.written) = (fault, 0);
    }

    /// Brings the disk back as the crash left it; `seed` decides what was lost with the power.
    pub fn reboot(&self, seed: u64) {
        let mut state = self.state();
        if matches!(state.fault, Fault::PowerLoss(_)) {
            let mut dice = Dice::new(seed);
            let mut platter = std::mem::take(&mut state.synced);
            platter.resize(platter.len().max(state.cached.len()), 0);
            for (offset, data) in std::mem::take(&mut state.unsynced) {
                // A write may be lost, done, or done in part, in pieces of a sector.
                for (index, sector) in data.chunks(512).enumerate() {
                    if !dice.next_u64().is_multiple_of(3) {
                        let at = offset as usize + index * 512;
                        platter[at..at + sector.len()].copy_from_slice(sector);
                    }
                }
            }
            state.cached = platter.clone();
            state.synced = platter;
        }
        state.unsynced.clear();
        (state.fault, state.written, state.dead) = (Fault::None, 0, false);
    }

    /// Flips a bit of what is on it.
    pub fn flip(&self, bit: u64) {
        let mut state = self.state();
        let at = (bit / 8) as usize % state.cached.len();
        let mask = 1 << (bit % 8);
        state.cached[at] ^= mask;
        state.synced = state.cached.clone();
    }

    /// How many bytes are on it.
    pub fn bytes(&self) -> u64 {
        self.state().cached.len() as u64
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no test panics with the disk in hand")
    }

    /// Counts a write, and fails if its time has come.
    fn step(&self) -> io::Result<MutexGuard<'_, State>> {
        let mut state = self.state();
        state.written += 1;
        match state.fault {
            Fault::Kill(at) | Fault::PowerLoss(at) if state.written >= at => state.dead = true,
            Fault::Once(at) if state.written == at => {
                return Err(io::Error::other("this write fails"));
            }
            _ => {}
        }
        if state.dead {
            return Err(io::Error::other("the disk is gone"));
        }
        Ok(state)
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        Ok(self.state().cached.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let state = self.state();
        let (from, to) = (offset as usize, offset as usize + out.len());
        let data = state.cached.get(from..to).ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(data);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut state = self.step()?;
        let grows = len.saturating_sub(state.cached.len() as u64);
        if state.fault == Fault::Full {
            let left = state.given_up.checked_sub(grows);
            state.given_up = left.ok_or(io::ErrorKind::StorageFull)?;
        }
        state.cached.resize(len as usize, 0);
        // A length is kept with the file system's journal; what is beyond it is not.
        state.synced.resize(len as usize, 0);
        state.unsynced.retain(|(offset, data)| offset + data.len() as u64 <= len);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut state = self.step()?;
        let unsynced = std::mem::take(&mut state.unsynced);
        for (offset, data) in unsynced {
            state.synced[offset as usize..][..data.len()].copy_from_slice(&data);
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut state = self.step()?;
        state.cached[offset as usize..][..data.len()].copy_from_slice(data);
        state.unsynced.push((offset, data.to_vec()));
        Ok(())
    }
}

impl Default for Disk {
    fn default() -> Self {
        Self::new()
    }
}

/// Space that is set aside on a disk.
#[derive(Debug)]
pub struct SetAside {
    disk: Disk,
    bytes: u64,
}

impl Reserve for SetAside {
    fn set_aside(&mut self) -> io::Result<()> {
        let mut state = self.disk.state();
        if state.fault == Fault::Full {
            return Err(io::ErrorKind::StorageFull.into());
        }
        state.given_up = 0;
        Ok(())
    }

    fn give_up(&mut self) {
        self.disk.state().given_up = self.bytes;
    }
}
