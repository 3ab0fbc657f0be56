use serde_json::{Map, Value};
use std::fmt;
use time::macros::format_description;
use tracing::field::{Field, Visit};
use tracing::span::Record;
use tracing::{Event, Subscriber};
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, FormattedFields};
use tracing_subscriber::registry::LookupSpan;
use types::{Clock, SystemClock};

/// Events as lines of JSON: `time`, `level`, `target`, `message`, the event's fields under `fields`, and the
/// spans it happened in, the outermost first, each with its `name` and its fields.
pub(super) struct Lines;

/// Fields of a span, kept as a JSON object.
pub(super) struct Fields;

impl<S> FormatEvent<S, Fields> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, Fields>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut fields = Visited::default();
        event.record(&mut fields);
        let mut line = Map::new();
        line.insert("time".to_owned(), now().into());
        line.insert("level".to_owned(), event.metadata().level().as_str().into());
        line.insert("target".to_owned(), event.metadata().target().into());
        line.insert("message".to_owned(), fields.0.remove("message").unwrap_or_default());
        if !fields.0.is_empty() {
            line.insert("fields".to_owned(), fields.0.into());
        }
        let spans: Vec<Value> = context
            .event_scope()
            .into_iter()
            .flat_map(|scope| scope.from_root())
            .map(|span| {
                let kept =
                    span.extensions().get::<FormattedFields<Fields>>().map(|kept| object(&kept.fields));
                let mut described = Map::from_iter([("name".to_owned(), span.name().into())]);
                described.extend(kept.unwrap_or_default());
                described.into()
            })
            .collect();
        if !spans.is_empty() {
            line.insert("spans".to_owned(), spans.into());
        }
        writeln!(writer, "{}", Value::from(line))
    }
}

impl<'writer> FormatFields<'writer> for Fields {
    fn format_fields<R: RecordFields>(&self, mut writer: Writer<'writer>, fields: R) -> fmt::Result {
        let mut visited = Visited::default();
        fields.record(&mut visited);
        write!(writer, "{}", Value::from(visited.0))
    }

    fn add_fields(&self, kept: &'writer mut FormattedFields<Self>, fields: &Record<'_>) -> fmt::Result {
        let mut visited = Visited(object(&kept.fields));
        fields.record(&mut visited);
        kept.fields = Value::from(visited.0).to_string();
        Ok(())
    }
}

fn object(text: &str) -> Map<String, Value> {
    serde_json::from_str(text).unwrap_or_default()
}

fn now() -> String {
    let format = format_description!("[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:3]Z");
    let now = time::OffsetDateTime::from_unix_timestamp_nanos(i128::from(SystemClock.now_ms()) * 1_000_000);
    now.ok().and_then(|now| now.format(format).ok()).unwrap_or_default()
}

#[derive(Default)]
struct Visited(Map<String, Value>);

impl Visited {
    fn keep(&mut self, field: &Field, value: impl Into<Value>) {
        self.0.insert(field.name().to_owned(), value.into());
    }
}

impl Visit for Visited {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.keep(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.keep(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.keep(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.keep(field, value);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.keep(field, value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.keep(field, format!("{value:?}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;
    use std::sync::{Arc, Mutex};
    use tracing_subscriber::layer::SubscriberExt;

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn an_event_is_one_line_with_its_fields_and_spans() {
        let written = Written::default();
        let writer = written.clone();
        let lines = tracing_subscriber::fmt::layer().fmt_fields(Fields).event_format(Lines);
        let logs =
            tracing_subscriber::registry().with(lines.with_writer(move || writer.clone()).with_ansi(false));
        tracing::subscriber::with_default(logs, || {
            let span = tracing::info_span!("request", id = 7, late = tracing::field::Empty);
            span.record("late", "a\nb");
            let _entered = span.enter();
            tracing::warn!(why = %"it \"broke\"", count = 3, ok = false, "two\nlines");
        });
        let text = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
        assert_eq!(text.matches('\n').count(), 1, "{text}");
        let line: Value = serde_json::from_str(&text).unwrap();
        assert_eq!((&line["level"], &line["message"]), (&"WARN".into(), &"two\nlines".into()));
        assert_eq!(line["fields"], serde_json::json!({"why": "it \"broke\"", "count": 3, "ok": false}));
        assert_eq!(line["spans"], serde_json::json!([{"name": "request", "id": 7, "late": "a\nb"}]));
    }
}
