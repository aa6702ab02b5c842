//! The names of the header fields Tollway emits.

crate::named_enum! {
    /// A header field that [`Dialect::emit`](super::Dialect::emit) can write.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub enum Field {
        /// `RateLimit`: what remains, by policy.
        RateLimit = "RateLimit",
        /// `RateLimit-Policy`: the quotas themselves, the same on every response.
        RateLimitPolicy = "RateLimit-Policy",
        /// `RateLimit-Limit` of the drafts before -07.
        RateLimitLimit = "RateLimit-Limit",
        /// `RateLimit-Remaining` of the drafts before -07.
        RateLimitRemaining = "RateLimit-Remaining",
        /// `RateLimit-Reset` of the drafts before -07.
        RateLimitReset = "RateLimit-Reset",
        /// `X-RateLimit-Limit`.
        XRateLimitLimit = "X-RateLimit-Limit",
        /// `X-RateLimit-Remaining`.
        XRateLimitRemaining = "X-RateLimit-Remaining",
        /// `X-RateLimit-Reset`.
        XRateLimitReset = "X-RateLimit-Reset",
        /// `X-RateLimit-Clear` of Sharkey.
        XRateLimitClear = "X-RateLimit-Clear",
        /// `Retry-After` of RFC 9110.
        RetryAfter = "Retry-After",
    }
}
