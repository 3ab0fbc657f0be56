//! The elements of an XML body. The protocol layer skips those it does not know; a client that sends one asks
//! for something.

/// The most elements of a name: as many as an upload has parts. Each becomes a structure of some hundred
/// bytes.
const OF_A_NAME_MAX: usize = 10_000;

/// The reason why a document is refused.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refused<'a> {
    /// An element that nobody knows, by its name without prefix.
    Unknown(&'a str),
    TooMany,
    /// An element with a number that is none. The protocol layer takes the digits that it begins with.
    NoNumber,
}

/// The elements that have numbers.
const NUMBERS: [&str; 2] = ["PartNumber", "Size"];

/// Refuses the first element that is not among `known`, or is there too often.
pub(super) fn check<'a>(xml: &'a str, known: &[&str]) -> Result<(), Refused<'a>> {
    let mut counts = vec![0; known.len()];
    let mut rest = xml;
    while let Some((_, tag)) = rest.split_once('<') {
        rest = tag;
        // The protocol layer leaves out the text of a CDATA section: another key would be meant.
        if tag.starts_with("![CDATA[") {
            return Err(Refused::Unknown("CDATA"));
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
        let Some(at) = known.iter().position(|name| *name == local) else {
            return Err(Refused::Unknown(local));
        };
        counts[at] += 1;
        if counts[at] > OF_A_NAME_MAX {
            return Err(Refused::TooMany);
        }
        if NUMBERS.contains(&local) && !has_number(tag) {
            return Err(Refused::NoNumber);
        }
    }
    Ok(())
}

/// Whether digits, and nothing else, stand between the end of a tag and what follows.
fn has_number(tag: &str) -> bool {
    let text = tag.split_once('>').and_then(|(_, after)| after.split('<').next()).unwrap_or_default();
    let number = text.trim_matches([' ', '\t', '\r', '\n']);
    !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_found_by_name() {
        let check = |xml, unknown: Option<&str>| {
            let expect = unknown.map_or(Ok(()), |name| Err(Refused::Unknown(name)));
            assert_eq!(check(xml, &["Delete", "Key"]), expect, "{xml}");
        };
        check("<?xml version=\"1.0\"?><Delete xmlns=\"a\"><Key>k</Key></Delete>", None);
        check("<s:Delete xmlns:s=\"a\"><s:Key/></s:Delete>", None);
        check("<Delete><Tags><Tag/></Tags></Delete>", Some("Tags"));
        check("<Delete\n><s:Tags/></Delete>", Some("Tags"));
        check("<Delete><!-- <Tags><![CDATA[ --><Key>k</Key></Delete>", None);
        check("<Delete><Key><![CDATA[a/]]>b</Key></Delete>", Some("CDATA"));
        check("<Delete><Key>", None);
        check("no xml", None);
    }

    #[test]
    fn numbers_are_digits_and_nothing_else() {
        let number = |text| check(text, &["Part", "PartNumber"]);
        for right in ["<PartNumber>1</PartNumber>", "<Part><PartNumber a=\"b\">\n 010 </PartNumber>"] {
            assert_eq!(number(right), Ok(()), "{right}");
        }
        for wrong in ["1.9", "1e0", "1_0", "1abc", "1,000", "1 0", "+1", "-1", "", " ", "<!-- -->1", "&#49;"]
        {
            let text = format!("<Part><PartNumber>{wrong}</PartNumber></Part>");
            assert_eq!(check(&text, &["Part", "PartNumber"]), Err(Refused::NoNumber), "{wrong}");
        }
        assert_eq!(number("<PartNumber/>"), Err(Refused::NoNumber));
        assert_eq!(number("<PartNumber"), Err(Refused::NoNumber));
    }

    #[test]
    fn so_many_elements_that_nobody_may_mean_them_are_refused() {
        let parts = |count| format!("<Complete>{}</Complete>", "<Part><ETag/></Part>".repeat(count));
        let known = ["Complete", "Part", "ETag"];
        assert_eq!(check(&parts(OF_A_NAME_MAX), &known), Ok(()));
        assert_eq!(check(&parts(OF_A_NAME_MAX + 1), &known), Err(Refused::TooMany));
    }
}
