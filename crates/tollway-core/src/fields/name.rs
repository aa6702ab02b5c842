//! The names of the header fields Tollway emits.

/// A header field that [`Dialect::emit`](super::Dialect::emit) can write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Field {
    /// `RateLimit`: what remains, by policy.
    RateLimit,
    /// `RateLimit-Policy`: the quotas themselves, the same on every response.
    RateLimitPolicy,
    /// `RateLimit-Limit` of the drafts before -07.
    RateLimitLimit,
    /// `RateLimit-Remaining` of the drafts before -07.
    RateLimitRemaining,
    /// `RateLimit-Reset` of the drafts before -07.
    RateLimitReset,
    /// `X-RateLimit-Limit`.
    XRateLimitLimit,
    /// `X-RateLimit-Remaining`.
    XRateLimitRemaining,
    /// `X-RateLimit-Reset`.
    XRateLimitReset,
    /// `X-RateLimit-Clear` of Sharkey.
    XRateLimitClear,
    /// `Retry-After` of RFC 9110.
    RetryAfter,
}

impl Field {
    /// Every field, in the order of their discriminants: `ALL[field as usize] == field`.
    pub const ALL: [Self; 10] = [
        Self::RateLimit,
        Self::RateLimitPolicy,
        Self::RateLimitLimit,
        Self::RateLimitRemaining,
        Self::RateLimitReset,
        Self::XRateLimitLimit,
        Self::XRateLimitRemaining,
        Self::XRateLimitReset,
        Self::XRateLimitClear,
        Self::RetryAfter,
    ];

    /// The name as documents write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::RateLimit => "RateLimit",
            Self::RateLimitPolicy => "RateLimit-Policy",
            Self::RateLimitLimit => "RateLimit-Limit",
            Self::RateLimitRemaining => "RateLimit-Remaining",
            Self::RateLimitReset => "RateLimit-Reset",
            Self::XRateLimitLimit => "X-RateLimit-Limit",
            Self::XRateLimitRemaining => "X-RateLimit-Remaining",
            Self::XRateLimitReset => "X-RateLimit-Reset",
            Self::XRateLimitClear => "X-RateLimit-Clear",
            Self::RetryAfter => "Retry-After",
        }
    }

    /// The name in lower case, as HTTP/2 demands it on the wire.
    pub const fn lowercase(self) -> &'static str {
        match self {
            Self::RateLimit => "ratelimit",
            Self::RateLimitPolicy => "ratelimit-policy",
            Self::RateLimitLimit => "ratelimit-limit",
            Self::RateLimitRemaining => "ratelimit-remaining",
            Self::RateLimitReset => "ratelimit-reset",
            Self::XRateLimitLimit => "x-ratelimit-limit",
            Self::XRateLimitRemaining => "x-ratelimit-remaining",
            Self::XRateLimitReset => "x-ratelimit-reset",
            Self::XRateLimitClear => "x-ratelimit-clear",
            Self::RetryAfter => "retry-after",
        }
    }
}
