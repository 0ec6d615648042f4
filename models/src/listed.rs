//! Enums that know their variants.

/// Choices without numbers of their own, with the list of all of them, which tests and help texts go through.
macro_rules! listed {
    ($(#[$attribute:meta])* pub enum $name:ident { $($(#[$doc:meta])* $variant:ident,)+ }) => {
        $(#[$attribute])*
        pub enum $name { $($(#[$doc])* $variant,)+ }

        impl $name {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$variant),+];
        }
    };
}
