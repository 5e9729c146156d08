//! What a slot has or is to have: amounts, unknown, or any.

use std::fmt;

use super::amounts::Resources;

/// More was to be taken away than there is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{wanted} can't be taken from {there}")]
pub struct Unmatched {
    /// What was to be taken away.
    pub wanted: Box<ResourceProfile>,
    /// From this.
    pub there: Box<ResourceProfile>,
}

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum ResourceProfile {
    /// Nothing is stated: as a need, a default slot is taken for it.
    #[default]
    Unknown,
    /// More than anybody asks for.
    Any,
    /// These amounts.
    Of(Resources),
}

impl ResourceProfile {
    /// The amounts, if there are any.
    pub fn resources(&self) -> Option<&Resources> {
        match self {
            ResourceProfile::Of(resources) => Some(resources),
            ResourceProfile::Unknown | ResourceProfile::Any => None,
        }
    }

    /// Whether nothing is stated.
    pub fn is_unknown(&self) -> bool {
        *self == ResourceProfile::Unknown
    }

    /// Whether a slot of this profile serves `required`: it is exactly that, or that is unknown. A larger slot does not: it is
    /// cut to what is asked for.
    pub fn is_matching(&self, required: &ResourceProfile) -> bool {
        match (self, required) {
            (ResourceProfile::Any, _) | (_, ResourceProfile::Unknown) => true,
            (own, required) => own == required,
        }
    }

    /// Whether there is at least as much of everything as in `other`. Of what is unknown nobody can say so.
    pub fn all_fields_no_less_than(&self, other: &ResourceProfile) -> bool {
        match (self, other) {
            (ResourceProfile::Unknown, _) | (_, ResourceProfile::Unknown) => false,
            (ResourceProfile::Any, _) => true,
            (ResourceProfile::Of(_), ResourceProfile::Any) => false,
            (ResourceProfile::Of(own), ResourceProfile::Of(other)) => own.covers(other),
        }
    }

    /// Both together: any with anything is any, unknown with anything else unknown.
    #[must_use]
    pub fn merge(&self, other: &ResourceProfile) -> ResourceProfile {
        match (self, other) {
            (ResourceProfile::Any, _) | (_, ResourceProfile::Any) => ResourceProfile::Any,
            (ResourceProfile::Unknown, _) | (_, ResourceProfile::Unknown) => {
                ResourceProfile::Unknown
            }
            (ResourceProfile::Of(own), ResourceProfile::Of(other)) => {
                ResourceProfile::Of(own.plus(other))
            }
        }
    }

    /// What is left of it without `other`.
    pub fn subtract(&self, other: &ResourceProfile) -> Result<ResourceProfile, Unmatched> {
        let left = match (self, other) {
            (ResourceProfile::Any, _) | (_, ResourceProfile::Any) => Some(ResourceProfile::Any),
            (ResourceProfile::Unknown, _) | (_, ResourceProfile::Unknown) => {
                Some(ResourceProfile::Unknown)
            }
            (ResourceProfile::Of(own), ResourceProfile::Of(other)) => {
                own.minus(other).map(ResourceProfile::Of)
            }
        };
        left.ok_or_else(|| Unmatched {
            wanted: Box::new(other.clone()),
            there: Box::new(self.clone()),
        })
    }

    /// So many times as much; any and unknown stay what they are.
    #[must_use]
    pub fn multiply(&self, count: u32) -> ResourceProfile {
        match self {
            ResourceProfile::Of(resources) => ResourceProfile::Of(resources.times(count)),
            other => other.clone(),
        }
    }
}

impl From<Resources> for ResourceProfile {
    fn from(resources: Resources) -> ResourceProfile {
        ResourceProfile::Of(resources)
    }
}

impl fmt::Display for ResourceProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ResourceProfile::Unknown => f.write_str("a default slot"),
            ResourceProfile::Any => f.write_str("any resources"),
            ResourceProfile::Of(resources) => resources.fmt(f),
        }
    }
}
