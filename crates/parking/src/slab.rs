use std::collections::BTreeSet;

const PAGE_SLOTS: usize = 1024;

/// A slot in use; good until its contents are removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct SlotId(u32);

/// Values at numbers that stay. Made of pages that are given back when they are empty, new values going to
/// the lowest page with room: the memory follows how many there are now, not how many there once were.
pub(crate) struct Slab<T> {
    pages: Vec<Option<Page<T>>>,
    /// Pages, or places for one, that have a free slot.
    with_room: BTreeSet<u32>,
    len: usize,
}

struct Page<T> {
    slots: Box<[Slot<T>]>,
    first_free: u32,
    used: usize,
}

enum Slot<T> {
    Used(T),
    Free { next: u32 },
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Slab { pages: Vec::new(), with_room: BTreeSet::new(), len: 0 }
    }
}

impl<T> Slab<T> {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn insert(&mut self, value: T) -> SlotId {
        let page_number = self.with_room.first().copied().unwrap_or(self.pages.len() as u32);
        if page_number as usize == self.pages.len() {
            self.pages.push(None);
            self.with_room.insert(page_number);
        }
        let page = self.pages[page_number as usize].get_or_insert_with(Page::new);
        let slot = page.first_free;
        match std::mem::replace(&mut page.slots[slot as usize], Slot::Used(value)) {
            Slot::Free { next } => page.first_free = next,
            Slot::Used(_) => unreachable!("the free list names free slots"),
        }
        page.used += 1;
        if page.used == PAGE_SLOTS {
            self.with_room.remove(&page_number);
        }
        self.len += 1;
        SlotId(page_number * PAGE_SLOTS as u32 + slot)
    }

    pub(crate) fn get(&self, id: SlotId) -> Option<&T> {
        match &self.pages.get(id.page())?.as_ref()?.slots[id.slot()] {
            Slot::Used(value) => Some(value),
            Slot::Free { .. } => None,
        }
    }

    pub(crate) fn get_mut(&mut self, id: SlotId) -> Option<&mut T> {
        match &mut self.pages.get_mut(id.page())?.as_mut()?.slots[id.slot()] {
            Slot::Used(value) => Some(value),
            Slot::Free { .. } => None,
        }
    }

    pub(crate) fn remove(&mut self, id: SlotId) -> Option<T> {
        let place = self.pages.get_mut(id.page())?;
        let page = place.as_mut()?;
        let slot = &mut page.slots[id.slot()];
        if matches!(slot, Slot::Free { .. }) {
            return None;
        }
        let removed = std::mem::replace(slot, Slot::Free { next: page.first_free });
        page.first_free = id.slot() as u32;
        page.used -= 1;
        self.len -= 1;
        let used = page.used;
        if used == PAGE_SLOTS - 1 {
            self.with_room.insert(id.page() as u32);
        }
        // One empty page is kept, or the first and the last value on it would each cost an allocation.
        if used == 0 && self.with_room.len() > 1 {
            *place = None;
            self.drop_pages_at_the_end();
        }
        match removed {
            Slot::Used(value) => Some(value),
            Slot::Free { .. } => None,
        }
    }

    fn drop_pages_at_the_end(&mut self) {
        while let Some(None) = self.pages.last() {
            self.pages.pop();
            self.with_room.remove(&(self.pages.len() as u32));
        }
    }

    #[cfg(test)]
    fn pages_in_memory(&self) -> usize {
        self.pages.iter().flatten().count()
    }
}

impl<T> Page<T> {
    fn new() -> Page<T> {
        let slots = (0..PAGE_SLOTS as u32).map(|slot| Slot::Free { next: slot + 1 }).collect();
        Page { slots, first_free: 0, used: 0 }
    }
}

impl SlotId {
    fn page(self) -> usize {
        self.0 as usize / PAGE_SLOTS
    }

    fn slot(self) -> usize {
        self.0 as usize % PAGE_SLOTS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_follows_how_many_there_are_now() {
        let mut slab = Slab::default();
        let ids: Vec<_> = (0..100 * PAGE_SLOTS).map(|n| slab.insert(n)).collect();
        assert_eq!(slab.pages_in_memory(), 100);
        for id in &ids[..99 * PAGE_SLOTS] {
            slab.remove(*id).unwrap();
        }
        assert!(slab.pages_in_memory() <= 2);
        let id = slab.insert(7);
        assert_eq!(id.page(), 0, "the lowest page with room");
        assert_eq!((slab.remove(id), slab.remove(id), slab.get(id)), (Some(7), None, None));
        for id in &ids[99 * PAGE_SLOTS..] {
            assert_eq!(slab.get(*id).copied(), slab.remove(*id));
        }
        assert!(slab.pages_in_memory() <= 1 && slab.pages.len() <= 1);
        assert_eq!(slab.len(), 0);
    }

    proptest::proptest! {
        #[test]
        fn a_slab_is_a_map(steps in proptest::collection::vec((0u8..3, 0usize..64), 0..300)) {
            let mut slab = Slab::default();
            let mut model: Vec<(SlotId, usize)> = Vec::new();
            for (step, (choice, nth)) in steps.into_iter().enumerate() {
                if choice < 2 {
                    model.push((slab.insert(step), step));
                } else if !model.is_empty() {
                    let (id, value) = model.swap_remove(nth % model.len());
                    proptest::prop_assert_eq!(slab.remove(id), Some(value));
                }
                proptest::prop_assert_eq!(slab.len(), model.len());
                proptest::prop_assert!(model.iter().all(|(id, value)| slab.get(*id) == Some(value)));
            }
        }
    }
}
