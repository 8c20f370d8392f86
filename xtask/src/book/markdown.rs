//! What a page of Markdown has: links, and headings that links lead to.

use std::collections::{BTreeMap, BTreeSet};

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

#[derive(Debug, Default, PartialEq)]
pub(super) struct MarkdownPage {
    /// What links, pictures and tags of HTML name, in the order of the text.
    pub(super) links: Vec<String>,
    /// Names of the headings, as GitHub and mdBook make them.
    pub(super) anchors: BTreeSet<String>,
    /// Pieces of code inside its sentences.
    pub(super) codes: Vec<String>,
}

impl MarkdownPage {
    pub(super) fn read(text: &str) -> Self {
        let mut page = Self::default();
        let mut heading: Option<String> = None;
        let mut seen: BTreeMap<String, u32> = BTreeMap::new();
        for event in Parser::new_ext(text, Options::ENABLE_TABLES) {
            match event {
                Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => page.links.push(dest_url.into_string()),
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::End(TagEnd::Heading(_)) => {
                    let name = anchor(&heading.take().unwrap_or_default());
                    let before = seen.entry(name.clone()).or_default();
                    page.anchors.insert(if *before == 0 { name } else { format!("{name}-{before}") });
                    *before += 1;
                }
                Event::Text(part) => add(&mut heading, &part),
                Event::Code(part) => {
                    add(&mut heading, &part);
                    page.codes.push(part.into_string());
                }
                Event::Html(tag) | Event::InlineHtml(tag) => page.links.extend(addresses(&tag)),
                _ => {}
            }
        }
        page
    }
}

fn add(heading: &mut Option<String>, part: &str) {
    if let Some(heading) = heading {
        heading.push_str(part);
    }
}

/// The name of a heading: small letters, digits, `-` and `_`, and a `-` for each space.
fn anchor(heading: &str) -> String {
    let sign = |c: char| match c {
        c if c.is_whitespace() => Some('-'),
        c if c.is_alphanumeric() || c == '-' || c == '_' => Some(c.to_ascii_lowercase()),
        _ => None,
    };
    heading.trim().chars().filter_map(sign).collect()
}

/// The values of `src` and `href` in an HTML tag.
fn addresses(tag: &str) -> Vec<String> {
    let named = ["src=\"", "href=\""].into_iter().flat_map(|name| tag.split(name).skip(1));
    named.filter_map(|rest| Some(rest.split_once('"')?.0.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_pictures_and_tags_are_links_and_code_is_none() {
        let text =
            "[a](b.md) ![c](d.svg) <img src=\"e.png\"> <https://f.example> `[g](h)`\n\n```\n[i](j)\n```\n\n| k |\n|---|\n| [l](m) |\n";
        let page = MarkdownPage::read(text);
        assert_eq!(page.links, ["b.md", "d.svg", "e.png", "https://f.example", "m"]);
        assert_eq!(page.codes, ["[g](h)"]);
    }

    #[test]
    fn headings_have_the_names_that_github_gives_them() {
        let text = "# `max_loss` and confirm-loss\n\n## On Linux, etc.\n\n## Twice\n\n## Twice\n\n## With [a link](x)\n";
        let anchors = MarkdownPage::read(text).anchors;
        assert_eq!(Vec::from_iter(&anchors), ["max_loss-and-confirm-loss", "on-linux-etc", "twice", "twice-1", "with-a-link"]);
    }
}
