//! A macro for enums with a list of all their variants.

/// Defines an enum of variants without fields, with a list `ALL` of its variants, over which tests and help texts loop.
macro_rules! listed {
    ($(#[$attribute:meta])* pub enum $name:ident { $($(#[$doc:meta])* $variant:ident,)+ }) => {
        $(#[$attribute])*
        pub enum $name { $($(#[$doc])* $variant,)+ }

        impl $name {
            /// All variants.
            pub const ALL: &[Self] = &[$(Self::$variant),+];
        }
    };
}
