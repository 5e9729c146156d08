//! The names that the values of an enum have in a job file.

/// Gives an enum the list of all its values, and each value its name in a job file.
#[macro_export]
macro_rules! named {
    ($choice:ident { $($value:ident = $name:literal),+ $(,)? }) => {
        impl $choice {
            /// All values, in the order of messages.
            pub const ALL: [$choice; [$($name),+].len()] = [$($choice::$value),+];

            /// Its name in a job file.
            pub fn name(self) -> &'static str {
                match self {
                    $($choice::$value => $name,)+
                }
            }
        }
    };
}
