//! Enums whose variants have names in configurations, labels and files.
//!
//! The list of all variants and the table of their names are written from one declaration: neither
//! can lack a variant that is added.

/// Declares an enum with `ALL` of its variants, in the order of their discriminants, and the
/// `name` of each.
#[doc(hidden)]
#[macro_export]
macro_rules! named_enum {
    (
        $(#[$about:meta])*
        $vis:vis enum $enum:ident { $($(#[$doc:meta])* $variant:ident = $name:literal,)* }
    ) => {
        $(#[$about])*
        $vis enum $enum { $($(#[$doc])* $variant,)* }

        impl $enum {
            /// All of them, in order: `ALL[one as usize] == one`.
            $vis const ALL: [Self; [$($name),*].len()] = [$(Self::$variant),*];

            /// The name, as texts spell it.
            $vis const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }
        }
    };
}
