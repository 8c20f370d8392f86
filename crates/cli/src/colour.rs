//! Colours, if the terminal shows them.

use std::io::{self, IsTerminal};

use clap::builder::styling::{AnsiColor, Style};

/// The meaning of a colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Colour {
    Heading,
    Good,
    Warning,
    Bad,
}

/// Marks in a text for stdout, from a private area of Unicode: [`painted`] turns them into colours after all foreign text is escaped.
/// Foreign text that contains a mark is shown in colour, without further effect.
const ENDS: char = '\u{f0000}';
const MARKS: [(char, Colour); 4] =
    [('\u{f0001}', Colour::Heading), ('\u{f0002}', Colour::Good), ('\u{f0003}', Colour::Warning), ('\u{f0004}', Colour::Bad)];

impl Colour {
    const fn style(self) -> Style {
        match self {
            Self::Heading => Style::new().bold(),
            Self::Good => AnsiColor::Green.on_default(),
            Self::Warning => AnsiColor::Yellow.on_default(),
            Self::Bad => AnsiColor::Red.on_default().bold(),
        }
    }

    /// The colour of a state's name, if it has one.
    pub(crate) fn of_state(word: &str) -> Option<Self> {
        match word {
            "active" | "alive" => Some(Self::Good),
            "dead" | "blocked" | "parked" => Some(Self::Bad),
            "draining" | "drained" | "drain requested" | "no worker" | "worker fails" | "pausing" | "away" => Some(Self::Warning),
            _ => None,
        }
    }

    /// The text for stdout in this colour; plain if stdout shows no colours.
    pub(crate) fn mark(self, text: &str) -> String {
        match MARKS.iter().find(|(_, colour)| *colour == self && is_shown(&io::stdout())) {
            Some((mark, _)) => format!("{mark}{text}{ENDS}"),
            None => text.to_owned(),
        }
    }

    /// The text for stderr in this colour; plain if stderr shows no colours.
    pub(crate) fn on_stderr(self, text: &str) -> String {
        let style = self.style();
        if is_shown(&io::stderr()) { format!("{style}{text}{style:#}") } else { text.to_owned() }
    }
}

/// Whether that output shows colours: a terminal that supports them, without `NO_COLOR`.
pub(crate) fn is_shown(output: &impl IsTerminal) -> bool {
    let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    output.is_terminal() && !is_set("NO_COLOR") && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Turns the marks of a text into colours.
pub(crate) fn painted(text: String) -> String {
    if !text.contains(ENDS) || !is_shown(&io::stdout()) {
        return text;
    }
    let coloured = MARKS.iter().fold(text, |text, (mark, colour)| text.replace(*mark, &colour.style().to_string()));
    coloured.replace(ENDS, &format!("{:#}", Colour::Heading.style()))
}
