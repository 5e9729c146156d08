//! The resources of a slot, or those requested: amounts, unknown, or any.

use std::fmt;

use super::amounts::Resources;

/// Error: more was subtracted than there is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{wanted} can't be taken from {there}")]
pub struct Unmatched {
    /// The subtracted profile.
    pub wanted: Box<ResourceProfile>,
    /// The profile from which it was subtracted.
    pub there: Box<ResourceProfile>,
}

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum ResourceProfile {
    /// Nothing is specified: as a requirement, it means a default slot.
    #[default]
    Unknown,
    /// More than any requirement.
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

    /// Whether nothing is specified.
    pub fn is_unknown(&self) -> bool {
        *self == ResourceProfile::Unknown
    }

    /// Whether a slot of this profile serves `required`: the profiles are equal, or `required` is unknown. A
    /// larger slot does not match: slots are cut to the requested size.
    pub fn is_matching(&self, required: &ResourceProfile) -> bool {
        match (self, required) {
            (ResourceProfile::Any, _) | (_, ResourceProfile::Unknown) => true,
            (own, required) => own == required,
        }
    }

    /// Whether each amount is at least that of `other`. `false` if one of them is unknown.
    pub fn all_fields_no_less_than(&self, other: &ResourceProfile) -> bool {
        // Ordered: unknown wins over any.
        match (self, other) {
            (ResourceProfile::Unknown, _) | (_, ResourceProfile::Unknown) => false,
            (ResourceProfile::Any, _) => true,
            (ResourceProfile::Of(_), ResourceProfile::Any) => false,
            (ResourceProfile::Of(own), ResourceProfile::Of(other)) => own.covers(other),
        }
    }

    /// The sum: any with anything is any, unknown with anything else unknown.
    #[must_use]
    pub fn merge(&self, other: &ResourceProfile) -> ResourceProfile {
        // Ordered: any wins over unknown.
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

    /// The difference of this and `other`: with any it is any, with unknown otherwise unknown.
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

    /// The product with `count`; any and unknown stay the same.
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
