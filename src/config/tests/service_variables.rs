//! Variables that Kubernetes sets for services whose names begin with `tanist`.

use super::{environment, refusal};
use crate::Configuration;

#[test]
fn the_variables_of_services_are_passed_over_and_named() {
    let of_services = [
        ("TANIST_SERVICE_HOST", "10.96.0.7"),
        ("TANIST_SERVICE_PORT", "8081"),
        ("TANIST_SERVICE_PORT_REST", "8081"),
        ("TANIST_PORT", "tcp://10.96.0.7:8081"),
        ("TANIST_PORT_8081_TCP", "tcp://10.96.0.7:8081"),
        ("TANIST_PORT_8081_TCP_PROTO", "tcp"),
        ("TANIST_PORT_8081_TCP_PORT", "8081"),
        ("TANIST_PORT_8081_TCP_ADDR", "10.96.0.7"),
        ("TANIST_DNS_PORT_53_UDP_ADDR", "10.96.0.8"),
        // A service `tanist-rest`: the option `rest.port` has the same variable.
        ("TANIST_REST_PORT", "tcp://10.96.0.9:8081"),
        ("TANIST_REST_SERVICE_HOST", "10.96.0.9"),
    ];
    let configuration = Configuration::load(environment(&of_services)).expect("none is an option");
    let names = of_services.map(|(name, _)| name.to_owned());
    assert_eq!(configuration.passed_over(), names);
    let explicit = configuration.explicit_settings();
    assert!(explicit.is_empty(), "{explicit:?}");
}

#[test]
fn a_variable_that_sets_an_option_or_is_misspelt_is_not_taken_for_that_of_a_service() {
    let set = Configuration::load(environment(&[("TANIST_REST_PORT", "9999")]));
    let set = set.expect("it is an option");
    assert!(set.passed_over().is_empty());
    let shown = set.explicit_settings();
    assert!(
        shown.iter().any(|setting| setting.key == "rest.port"),
        "{shown:?}"
    );
    for variable in [
        "TANIST_PORT",
        "TANIST_REST_PORT_NUMBER",
        "TANIST_PORT_x_TCP",
    ] {
        let message = refusal(environment(&[(variable, "1")]));
        assert!(message.contains(variable), "{message}");
    }
}
