//! Values of resources that a TaskManager offers: CPU cores, and extended resources by name.

use tanist_proto::resources::{CpuCores, extended_name_problem};

use super::value::OptionValue;

/// A resource besides CPU and memory, written `NAME:AMOUNT` or `NAME:AMOUNT:VARIABLE`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExternalResource {
    /// Its name.
    pub name: String,
    /// Number of units. They are numbered from 0.
    pub amount: u64,
    /// Environment variable in which programs find the numbers of their units, besides `TANIST_RESOURCE_NAME`.
    pub variable: Option<String>,
}

impl OptionValue for Vec<ExternalResource> {
    const KIND: &'static str = "resources, separated by commas";

    fn parse(text: &str) -> Result<Vec<ExternalResource>, String> {
        text.split(',').map(|part| resource(part.trim())).collect()
    }
}

fn resource(text: &str) -> Result<ExternalResource, String> {
    let wrong = |problem: &str| format!("has `{text}`, {problem}: write for example `gpu:2`");
    let mut parts = text.split(':').map(str::trim);
    let name = parts.next().unwrap_or_default();
    if extended_name_problem(name).is_some() {
        return Err(wrong(
            "whose name is not made of lower-case letters, digits, - and _",
        ));
    }
    let amount = parts.next().and_then(|amount| amount.parse().ok());
    // The limit exists because each unit is listed by its number.
    let Some(amount) = amount.filter(|amount| (1..=65_536).contains(amount)) else {
        return Err(wrong("which has no amount from 1 to 65536"));
    };
    let variable = parts.next().map(str::to_owned);
    let is_variable = |name: &String| {
        let allowed = |c: char| c.is_ascii_alphanumeric() || c == '_';
        name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') && name.chars().all(allowed)
    };
    if parts.next().is_some() || variable.as_ref().is_some_and(|name| !is_variable(name)) {
        return Err(wrong("whose third part is no environment variable"));
    }
    Ok(ExternalResource {
        name: name.to_owned(),
        amount,
        variable,
    })
}

impl OptionValue for CpuCores {
    const KIND: &'static str = "number of cores";

    fn parse(text: &str) -> Result<CpuCores, String> {
        text.parse()
            .map_err(|_| "is no number of cores: write for example `2` or `0.5`".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn external_resources_have_a_name_an_amount_and_perhaps_a_variable() {
        let parsed = Vec::<ExternalResource>::parse("gpu:2:CUDA_VISIBLE_DEVICES, fpga-a:1");
        let resource = |name: &str, amount, variable: Option<&str>| ExternalResource {
            name: name.to_owned(),
            amount,
            variable: variable.map(str::to_owned),
        };
        let expected = [
            resource("gpu", 2, Some("CUDA_VISIBLE_DEVICES")),
            resource("fpga-a", 1, None),
        ];
        assert_eq!(parsed.as_deref(), Ok(expected.as_slice()));
        for wrong in [
            "",
            "gpu",
            "gpu:",
            "gpu:0",
            "gpu:x",
            "GPU:1",
            "gpu:1:A B",
            "gpu:1:A:B",
            "gpu:99999999",
        ] {
            assert!(Vec::<ExternalResource>::parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
