//! `tanist config`: the configuration in effect.

use serde_json::json;
use tanist_config::{Configuration, Setting};
use tanist_telemetry::ExitCode;

use super::args::OutputFormat;
use super::output::{Table, answer, answer_json, warn};

pub(super) fn show(configuration: &Configuration, format: OutputFormat) -> ExitCode {
    let settings = configuration.settings();
    match format {
        OutputFormat::Json => {
            let entry = |setting: &Setting| {
                json!({
                    "key": setting.key,
                    "value": setting.value,
                    "source": setting.source.to_string(),
                })
            };
            answer_json(&settings.iter().map(entry).collect());
        }
        OutputFormat::Table => {
            let mut table = Table::new(["KEY", "VALUE", "FROM"]);
            for setting in settings {
                let value = setting.value.unwrap_or_else(|| "none".to_owned());
                let source = setting.source.to_string();
                table.row([setting.key.to_owned(), value, source]);
            }
            answer(table);
        }
    }
    for warning in configuration.warnings() {
        warn(warning);
    }
    ExitCode::Ended
}
