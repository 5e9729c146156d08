//! The output of one event: the effects for the actor, the news for the checkpoints and the lines for the log, each in
//! the order in which they were added. Data only.

use super::{Effect, LogLine, checkpoints};

/// Effects and log lines; see the module.
#[derive(Debug, Default)]
pub(super) struct Output {
    effects: Vec<Effect>,
    log: Vec<LogLine>,
    /// None: the job takes no checkpoints.
    news: Option<Vec<checkpoints::Event>>,
}

impl Output {
    /// Adds an effect.
    pub(super) fn push(&mut self, effect: Effect) {
        self.effects.push(effect);
    }

    /// Keeps news for the checkpoints from now on.
    pub(super) fn keep_news(&mut self) {
        self.news.get_or_insert_default();
    }

    /// Adds news for the checkpoints.
    pub(super) fn tell(&mut self, event: checkpoints::Event) {
        if let Some(news) = &mut self.news {
            news.push(event);
        }
    }

    /// Removes and returns the news for the checkpoints.
    pub(super) fn take_news(&mut self) -> Vec<checkpoints::Event> {
        self.news.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Adds a line for the log.
    pub(super) fn log(&mut self, line: LogLine) {
        self.log.push(line);
    }

    /// Removes and returns the effects.
    pub(super) fn take_effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// Removes and returns the log lines.
    pub(super) fn take_log(&mut self) -> Vec<LogLine> {
        std::mem::take(&mut self.log)
    }
}
