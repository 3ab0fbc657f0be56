//! The elements of an XML body. The protocol layer skips those it does not know; a client that sends one asks
//! for something.

/// The first element that is not among `known`, by its name without prefix.
pub(super) fn unknown<'a>(xml: &'a str, known: &[&str]) -> Option<&'a str> {
    let mut rest = xml;
    while let Some((_, tag)) = rest.split_once('<') {
        rest = tag;
        // The protocol layer leaves out the text of a CDATA section: another key would be meant.
        if tag.starts_with("![CDATA[") {
            return Some("CDATA");
        }
        let skipped = [("!--", "-->"), ("!", ">"), ("?", ">"), ("/", ">")]
            .into_iter()
            .find(|(begin, _)| tag.starts_with(begin));
        if let Some((begin, end)) = skipped {
            rest = tag[begin.len()..].split_once(end).map_or("", |(_, after)| after);
            continue;
        }
        let name = tag.split(|c: char| c.is_whitespace() || c == '/' || c == '>').next().unwrap_or_default();
        let local = name.rsplit(':').next().unwrap_or_default();
        if !known.contains(&local) {
            return Some(local);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_found_by_name() {
        let check = |xml, expect| assert_eq!(unknown(xml, &["Delete", "Key"]), expect, "{xml}");
        check("<?xml version=\"1.0\"?><Delete xmlns=\"a\"><Key>k</Key></Delete>", None);
        check("<s:Delete xmlns:s=\"a\"><s:Key/></s:Delete>", None);
        check("<Delete><Tags><Tag/></Tags></Delete>", Some("Tags"));
        check("<Delete\n><s:Tags/></Delete>", Some("Tags"));
        check("<Delete><!-- <Tags><![CDATA[ --><Key>k</Key></Delete>", None);
        check("<Delete><Key><![CDATA[a/]]>b</Key></Delete>", Some("CDATA"));
        check("<Delete><Key>", None);
        check("no xml", None);
    }
}
