use proto::registry::{Instance, KeyValue};
use std::collections::BTreeMap;
use std::ops::Bound;

/// All instances and all keys, in memory. They are bounded by the limits of [`super::limits`]: instances 10
/// 000 × 24 KiB, keys and values 64 MiB.
#[derive(Default, PartialEq, Debug)]
pub(crate) struct Directory {
    /// Instances by service and id.
    instances: BTreeMap<(String, String), Instance>,
    keys: BTreeMap<String, KeyValue>,
    /// The bytes of all keys and values.
    key_bytes: u64,
}

impl Directory {
    pub(crate) fn instance(&self, service: &str, id: &str) -> Option<&Instance> {
        self.instances.get(&(service.to_owned(), id.to_owned()))
    }

    pub(crate) fn instances(&self) -> impl Iterator<Item = &Instance> {
        self.instances.values()
    }

    /// The instances in the order of services and ids, from the given one on.
    pub(crate) fn instances_from(&self, service: &str, id: &str) -> impl Iterator<Item = &Instance> {
        self.instances.range((service.to_owned(), id.to_owned())..).map(|(_, instance)| instance)
    }

    pub(crate) fn instances_count(&self) -> u64 {
        self.instances.len() as u64
    }

    pub(crate) fn key(&self, key: &str) -> Option<&KeyValue> {
        self.keys.get(key)
    }

    /// Keys that begin with `prefix`, in order, from `from` on.
    pub(crate) fn keys_with<'a>(
        &'a self,
        prefix: &'a str,
        from: &'a str,
    ) -> impl Iterator<Item = &'a KeyValue> {
        let first = Bound::Included(prefix.max(from));
        let from_there = self.keys.range::<str, _>((first, Bound::Unbounded)).map(|(_, entry)| entry);
        from_there.take_while(move |entry| entry.key.starts_with(prefix))
    }

    pub(crate) fn keys_count(&self) -> u64 {
        self.keys.len() as u64
    }

    pub(crate) fn key_bytes(&self) -> u64 {
        self.key_bytes
    }

    pub(crate) fn insert_instance(&mut self, instance: Instance) {
        self.instances.insert((instance.service.clone(), instance.id.clone()), instance);
    }

    pub(crate) fn remove_instance(&mut self, service: &str, id: &str) {
        self.instances.remove(&(service.to_owned(), id.to_owned()));
    }

    pub(crate) fn insert_key(&mut self, entry: KeyValue) {
        self.key_bytes += entry_bytes(&entry);
        if let Some(before) = self.keys.insert(entry.key.clone(), entry) {
            self.key_bytes -= entry_bytes(&before);
        }
    }

    pub(crate) fn remove_key(&mut self, key: &str) {
        if let Some(before) = self.keys.remove(key) {
            self.key_bytes -= entry_bytes(&before);
        }
    }
}

/// The bytes of an entry that count against the limit.
pub(crate) fn entry_bytes(entry: &KeyValue) -> u64 {
    (entry.key.len() + entry.value.len()) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(key: &str, value: &'static str) -> KeyValue {
        KeyValue { key: key.to_owned(), value: value.into(), ..KeyValue::default() }
    }

    #[test]
    fn keys_are_found_by_prefix_and_counted_in_bytes() {
        let mut directory = Directory::default();
        for key in ["a", "a/1", "a/2", "a/3", "b"] {
            directory.insert_key(entry(key, "12345"));
        }
        let found = |prefix, from| {
            directory.keys_with(prefix, from).map(|entry| entry.key.as_str()).collect::<Vec<_>>()
        };
        assert_eq!(found("a/", ""), ["a/1", "a/2", "a/3"]);
        assert_eq!(found("a/", "a/2"), ["a/2", "a/3"]);
        assert_eq!(found("", "a/3"), ["a/3", "b"]);
        assert_eq!(found("c", ""), [""; 0]);
        assert_eq!(directory.key_bytes(), 11 + 5 * 5);
        directory.insert_key(entry("b", ""));
        directory.remove_key("a");
        directory.remove_key("no such");
        assert_eq!((directory.keys_count(), directory.key_bytes()), (4, 10 + 3 * 5));
    }

    #[test]
    fn a_service_is_not_one_whose_name_begins_alike() {
        let mut directory = Directory::default();
        for (service, id) in [("web", "b"), ("web", "a"), ("web-2", "a"), ("api", "z")] {
            let instance = Instance { service: service.to_owned(), id: id.to_owned(), ..Instance::default() };
            directory.insert_instance(instance);
        }
        let of_web = directory.instances_from("web", "").take_while(|instance| instance.service == "web");
        assert_eq!(of_web.map(|instance| instance.id.as_str()).collect::<Vec<_>>(), ["a", "b"]);
        let rest = directory.instances_from("web", "b").map(|instance| instance.service.as_str());
        assert_eq!(rest.collect::<Vec<_>>(), ["web", "web-2"]);
        assert_eq!(directory.instances_count(), 4);
    }
}
