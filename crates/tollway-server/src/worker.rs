//! A worker: one thread with everything its connections share and no other thread touches.
//!
//! Connections are handed to workers in turn and stay there, so that buffers, ad hoc policies and
//! the top list need no lock that anybody waits for.

use std::cell::{Ref, RefCell};
use std::sync::{Arc, Mutex};
use std::time::{Duration, UNIX_EPOCH};

use crate::adhoc::AdHoc;
use crate::client_stream::Buffers;
use crate::decide::Decider;
use crate::rules::Rules;
use crate::service::Service;
use crate::top::Tops;

/// What the connections of one thread share.
pub(crate) struct Worker {
    /// The service that all workers share.
    pub service: Arc<Service>,
    /// Policies that came with a request.
    pub adhoc: RefCell<AdHoc>,
    /// Buffers between two uses.
    pub buffers: Buffers,
    /// Keys most often allowed and denied on this thread.
    pub tops: Arc<Mutex<Tops>>,
    date: RefCell<(u64, String)>,
}

impl Worker {
    /// A worker of `service`.
    pub(crate) fn new(service: Arc<Service>) -> Self {
        let tops = service.enforcer.new_tops();
        let (adhoc, buffers, date) = Default::default();
        Self { service, adhoc, buffers, tops, date }
    }

    /// Decides a request, or a batch, under these rules as of now.
    pub(crate) fn decider<'a>(&'a self, rules: &'a Rules) -> Decider<'a> {
        self.service.enforcer.decider(rules, self.service.settings(), &self.tops)
    }

    /// The time as HTTP's `Date` says it, written anew once a second.
    pub(crate) fn date(&self) -> Ref<'_, str> {
        let now_s = self.service.clock().now().as_nanos() / 1_000_000_000;
        if self.date.borrow().0 != now_s || now_s == 0 {
            let text = httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(now_s));
            *self.date.borrow_mut() = (now_s, text);
        }
        Ref::map(self.date.borrow(), |(_, text)| text.as_str())
    }
}
