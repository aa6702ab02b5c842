//! Errors that are nothing but their text.
//!
//! An error and its text, or its variants and the text of each, are one declaration.

/// Declares an error with one text or one for each variant, or implements one that has its text.
#[doc(hidden)]
#[macro_export]
macro_rules! plain_error {
    ($(#[$about:meta])* $vis:vis struct $error:ident = $text:literal;) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        $vis struct $error;

        $crate::plain_error!($error, self => $text);
    };
    (
        $(#[$about:meta])*
        $vis:vis enum $error:ident { $($(#[$doc:meta])* $variant:ident = $text:literal,)* }
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        $vis enum $error { $($(#[$doc])* $variant,)* }

        $crate::plain_error!($error, self => match self { $(Self::$variant => $text,)* });
    };
    ($error:ident, $self:ident => $text:expr) => {
        impl ::core::fmt::Display for $error {
            fn fmt(&$self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                f.write_str($text)
            }
        }

        impl ::core::error::Error for $error {}
    };
}
