//! The fronts: what each is called, and where it listens unless it is told otherwise.
//!
//! A front is a line here, its folder, the call in `server` that serves a connection, and an
//! example in the command line's `hints`. Configuration, flags and metrics go by the line.

use tollway_core::named_enum;

/// Gives the fronts to a macro, before what that is given besides. Of each: its variant, its field
/// and name in files, flags and metrics, how people write it, its variable in the environment, and
/// the port on this machine where it listens by default. The order is that in which they are told.
macro_rules! with_fronts {
    ($then:ident! { $($rest:tt)* }) => {
        $then! {
            {
                Http http "http" "HTTP" "TOLLWAY_HTTP" 8080,
                Grpc grpc "grpc" "gRPC" "TOLLWAY_GRPC" 8081,
                Resp resp "resp" "RESP" "TOLLWAY_RESP" 6380,
            }
            $($rest)*
        }
    };
}
pub(crate) use with_fronts;

macro_rules! front {
    ({ $(
        $front:ident $field:ident $name:literal $title:literal $variable:literal $port:literal,
    )* }) => {
        named_enum! {
            /// A front of the service; its name is that of its flag, and its label.
            #[derive(Clone, Copy, Debug, PartialEq, Eq)]
            pub enum Front { $(#[doc = $title] $front = $name,)* }
        }

        impl Front {
            /// How people write it.
            pub const fn title(self) -> &'static str {
                match self { $(Self::$front => $title,)* }
            }

            /// The port on this machine where it listens by default.
            pub const fn port(self) -> u16 {
                match self { $(Self::$front => $port,)* }
            }

            /// The field in files that says where it listens.
            pub(crate) const fn field(self) -> &'static str {
                match self { $(Self::$front => concat!("listen.", $name),)* }
            }
        }
    };
}

with_fronts!(front! {});
