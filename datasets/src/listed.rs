//! A macro for enums with a list of their variants, so that the list cannot miss one.

/// Declares an enum of variants without fields, and `ALL`, which lists them in the order of their declaration.
macro_rules! listed {
    ($(#[$attribute:meta])* pub enum $name:ident { $($(#[$doc:meta])* $variant:ident,)+ }) => {
        $(#[$attribute])*
        pub enum $name { $($(#[$doc])* $variant,)+ }

        impl $name {
            /// Every variant, in the order of declaration.
            pub const ALL: [Self; [$(stringify!($variant)),+].len()] = [$(Self::$variant),+];
        }
    };
}

pub(crate) use listed;
