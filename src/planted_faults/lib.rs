//! Faults that a test plants into code, to show that it would find them. Outside of the tests of the crate that
//! declares them there are none, and asking for one compiles to `false`.
//!
//! A fault is planted in one thread: that of the test.

/// Declares an enum of faults, named by what goes wrong, with two functions beside it: `plant`, for tests, which plants
/// one in this thread or removes it, and `is_planted`, for the code that has the fault then. One declaration a module.
#[macro_export]
macro_rules! planted_faults {
    ($(#[$meta:meta])* $visibility:vis enum $fault:ident { $($variants:tt)* }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        $visibility enum $fault { $($variants)* }

        #[cfg(test)]
        ::std::thread_local! {
            static PLANTED: ::std::cell::Cell<Option<$fault>> = const { ::std::cell::Cell::new(None) };
        }

        /// Plants a fault in this thread, or removes it.
        #[cfg(test)]
        $visibility fn plant(fault: Option<$fault>) {
            PLANTED.set(fault);
        }

        /// Whether a fault is planted.
        #[cfg(test)]
        $visibility fn is_planted(fault: $fault) -> bool {
            PLANTED.get() == Some(fault)
        }

        /// Whether a fault is planted: never outside of tests.
        #[cfg(not(test))]
        $visibility const fn is_planted(_: $fault) -> bool {
            false
        }
    };
}

#[cfg(test)]
mod tests {
    planted_faults! {
        /// Two faults.
        enum Fault {
            One,
            Other,
        }
    }

    #[test]
    fn a_fault_is_planted_in_one_thread_until_it_is_removed() {
        assert!(!is_planted(Fault::One));
        plant(Some(Fault::One));
        assert!(is_planted(Fault::One) && !is_planted(Fault::Other));
        let elsewhere = std::thread::spawn(|| is_planted(Fault::One));
        assert!(!elsewhere.join().expect("no panic"));
        plant(None);
        assert!(!is_planted(Fault::One));
    }
}
