//! Reservations that this process made, so that settling them takes no look at their records.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use tokio::time::Instant;
use tollway_core::{Reservation, ReservationId};

use crate::request::KeyCharge;
use crate::settings::KEPT_BYTES_MAX;

/// The charges of a reservation in one slot, under the name that they have there.
#[derive(Clone, Debug)]
pub(crate) struct Leg {
    pub(crate) id: u128,
    pub(crate) parts: Vec<KeyCharge>,
}

/// The charges of open reservations, at most as many as it was made for and none with long keys:
/// the rest is looked up.
pub(crate) struct OpenReservations {
    open: Mutex<HashMap<ReservationId, (Instant, Vec<Leg>)>>,
    max: usize,
}

impl OpenReservations {
    pub(crate) fn new(max: usize) -> Self {
        Self { open: Mutex::default(), max }
    }

    pub(crate) fn put(&self, reservation: Reservation, legs: Vec<Leg>) {
        let keys = legs.iter().flat_map(|leg| &leg.parts).map(|part| part.key.len());
        if keys.sum::<usize>() > KEPT_BYTES_MAX {
            return;
        }
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.len() >= self.max {
            let now = Instant::now();
            open.retain(|_, (expires_at, _)| *expires_at > now);
        }
        let expires_at = Instant::now().checked_add(reservation.expires_after);
        if let (true, Some(expires_at)) = (open.len() < self.max, expires_at) {
            open.insert(reservation.id, (expires_at, legs));
        }
    }

    pub(crate) fn take(&self, id: ReservationId) -> Option<Vec<Leg>> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.remove(&id).map(|(_, legs)| legs)
    }
}
