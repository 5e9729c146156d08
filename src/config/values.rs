//! The values that were set, as text, each with its origin; filled by loading and read by building. The loaded
//! [`Configuration`](super::Configuration) keeps them for display.
//!
//! Invariants: a value in here has passed its option's check, so that reading it as its type can't fail. A value that
//! has not passed it is *broken*: reading gives the default, and relations with it are not checked.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::error::Source;
use super::table::{DefaultValue, Key, OptionSpec, find};
use super::value::OptionValue;
use super::{MASK, Setting};

/// A value that was set.
#[derive(Clone)]
struct Given {
    text: String,
    source: Source,
}

/// All values that were set.
#[derive(Clone, Default)]
pub(super) struct Values {
    given: BTreeMap<&'static str, Given>,
    broken: BTreeSet<&'static str>,
}

impl Values {
    /// Sets a checked value.
    pub(super) fn set(&mut self, spec: &'static OptionSpec, text: String, source: Source) {
        self.given.insert(spec.key, Given { text, source });
    }

    /// Records that the value could not be read: the default is used, but it is not compared with other options.
    pub(super) fn set_broken(&mut self, spec: &'static OptionSpec) {
        self.given.remove(spec.key);
        self.broken.insert(spec.key);
    }

    /// Whether the key's value could not be read.
    pub(super) fn is_broken(&self, key: &str) -> bool {
        self.broken.contains(key)
    }

    /// Whether it was set explicitly, readable or not.
    pub(super) fn is_set(&self, key: &str) -> bool {
        self.given.contains_key(key) || self.is_broken(key)
    }

    /// The keys that were set explicitly.
    pub(super) fn keys(&self) -> impl Iterator<Item = &'static str> + '_ {
        self.given.keys().copied()
    }

    /// The text as it was written, also of a secret.
    pub(super) fn text(&self, key: &str) -> Option<&str> {
        self.given.get(key).map(|given| given.text.as_str())
    }

    /// The value, or the default if that is a plain value.
    pub(super) fn find<T: OptionValue>(&self, key: &Key<T>) -> Option<T> {
        let default = || match find(key.name)?.default {
            DefaultValue::Value(text) => Some(text),
            DefaultValue::Derived(_) | DefaultValue::Unset => None,
        };
        let text = self
            .given
            .get(key.name)
            .map(|given| given.text.as_str())
            .or_else(default)?;
        Some(T::parse(text).expect("values are checked when they are set, defaults by a test"))
    }

    /// The value of an option whose default is a plain value.
    pub(super) fn get<T: OptionValue>(&self, key: &Key<T>) -> T {
        self.find(key)
            .expect("read with `get` are only options that have a plain default")
    }

    /// The option in a form that is safe to show.
    pub(super) fn setting(&self, spec: &'static OptionSpec) -> Setting {
        let (value, source) = match self.given.get(spec.key) {
            Some(_) if spec.secret => (Some(MASK.to_owned()), self.source(spec.key)),
            Some(given) => (Some(given.text.clone()), given.source.clone()),
            None => match spec.default {
                DefaultValue::Value(text) | DefaultValue::Derived(text) => {
                    (Some(text.to_owned()), Source::Default)
                }
                DefaultValue::Unset => (None, Source::Default),
            },
        };
        Setting {
            key: spec.key,
            value,
            source,
        }
    }

    fn source(&self, key: &str) -> Source {
        self.given
            .get(key)
            .map_or(Source::Default, |given| given.source.clone())
    }

    /// `key` is `value` (origin), for messages.
    pub(super) fn describe(&self, key: &'static str) -> String {
        let Some(spec) = find(key) else {
            return key.to_owned();
        };
        let Setting { value, source, .. } = self.setting(spec);
        match value {
            Some(value) => format!("`{key}` is `{value}` ({source})"),
            None => format!("`{key}` isn't set"),
        }
    }
}

impl fmt::Debug for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set()
            .entries(self.given.keys().map(|key| self.describe(key)))
            .finish()
    }
}
