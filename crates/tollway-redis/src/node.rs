//! One server of the store: its connection, and the requests that wait for a round trip to it.

use std::sync::Arc;

use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tollway_core::StoreError;

use crate::batch::{Manner, Outcome};
use crate::call::{Call, shut_down};
use crate::connection::{
    BatchBounds, Batcher, Client, ClientSettings, Dialer, Redirect, unavailable,
};
use crate::request::Request;
use crate::round_trip::round_trip;
use crate::settings::Settings;

/// One server.
pub(crate) struct Node {
    pub(crate) client: Arc<Client>,
    pub(crate) settings: Arc<Settings>,
    /// Where requests go that this server sends elsewhere.
    pub(crate) redirected: mpsc::UnboundedSender<Redirected>,
    /// Whether the server holds slots of a cluster, each of which takes a script of its own.
    pub(crate) by_slot: bool,
    calls: Batcher<RequestCall>,
}

/// A request on its way to a server.
pub(crate) type RequestCall = Call<RoutedRequest, Outcome>;

/// A request, how it is asked, and where.
pub(crate) struct RoutedRequest {
    pub(crate) request: Arc<Request>,
    pub(crate) manner: Manner,
    pub(crate) slot: u16,
    /// How often it was sent on to another server, or again.
    pub(crate) hops: u8,
    /// Whether the next server is only asked because the slot is on its way there.
    pub(crate) asking: bool,
}

/// A request that another server must answer, or this one later.
pub(crate) struct Redirected {
    pub(crate) call: RequestCall,
    pub(crate) to: Redirect,
}

impl Node {
    /// The only server of a store, connected or being probed as the settings say.
    pub(crate) async fn start(
        dialer: Dialer,
        settings: Arc<Settings>,
        redirected: mpsc::UnboundedSender<Redirected>,
    ) -> Result<Arc<Self>, StoreError> {
        let client_settings = ClientSettings::new(settings.timeout, &settings);
        let client = Client::start(dialer, client_settings, settings.start_without).await?;
        Ok(Self::new(client, settings, redirected, false))
    }

    /// A server of a cluster, connected if it can be.
    pub(crate) async fn join(
        dialer: Dialer,
        settings: Arc<Settings>,
        redirected: mpsc::UnboundedSender<Redirected>,
    ) -> Arc<Self> {
        let client = Client::join(dialer, ClientSettings::new(settings.timeout, &settings)).await;
        Self::new(client, settings, redirected, true)
    }

    fn new(
        client: Arc<Client>,
        settings: Arc<Settings>,
        redirected: mpsc::UnboundedSender<Redirected>,
        by_slot: bool,
    ) -> Arc<Self> {
        let calls_max = settings.batch_max.saturating_mul(4);
        let bounds = BatchBounds::within(settings.timeout, calls_max, &settings);
        Arc::new_cyclic(|node: &std::sync::Weak<Self>| {
            let node = node.clone();
            let run = move |calls| {
                let node = node.upgrade()?;
                Some(async move { round_trip(&node, calls).await })
            };
            let calls = Batcher::start(&Handle::current(), bounds, |_| 0, run);
            Self { client, settings, redirected, by_slot, calls }
        })
    }

    /// Hands over a request. It is answered even if it cannot be sent.
    pub(crate) fn submit(&self, call: RequestCall) {
        if let Err((call, reason)) = call.submit(&self.client, &self.calls) {
            self.refuse(call, reason);
        }
    }

    /// Answers a request that was not sent.
    pub(crate) fn refuse(&self, call: RequestCall, reason: &str) {
        let question = &call.question;
        // It was sent before and its answer was lost: the store knows the answer, so it is worth
        // waiting for until whoever asked gives up.
        let is_remembered = question.manner.remember_ms.is_some() && question.hops > 0;
        if is_remembered && !call.progress.is_abandoned() {
            self.client.outage().failed(call.began);
            self.redirect(call, Redirect::Later);
        } else {
            call.fail(&self.client, unavailable(reason));
        }
    }

    /// Has the request sent to another server, or to this one later.
    pub(crate) fn redirect(&self, call: RequestCall, to: Redirect) {
        if let Err(lost) = self.redirected.send(Redirected { call, to }) {
            lost.0.call.fail(&self.client, shut_down());
        }
    }
}
