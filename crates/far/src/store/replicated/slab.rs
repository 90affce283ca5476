//! A table of values under numbers that are used again.

/// The table.
pub struct Slab<T> {
    items: Vec<Option<T>>,
    vacant: Vec<usize>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Slab { items: Vec::new(), vacant: Vec::new() }
    }
}

impl<T> Slab<T> {
    pub fn insert(&mut self, item: T) -> usize {
        match self.vacant.pop() {
            Some(number) => {
                self.items[number] = Some(item);
                number
            }
            None => {
                self.items.push(Some(item));
                self.items.len() - 1
            }
        }
    }

    pub fn get(&self, number: usize) -> Option<&T> {
        self.items.get(number)?.as_ref()
    }

    pub fn get_mut(&mut self, number: usize) -> Option<&mut T> {
        self.items.get_mut(number)?.as_mut()
    }

    pub fn remove(&mut self, number: usize) -> Option<T> {
        let item = self.items.get_mut(number)?.take();
        if item.is_some() {
            self.vacant.push(number);
        }
        item
    }

    /// The next number in use, from `number` on.
    pub fn next(&self, number: usize) -> Option<usize> {
        (number..self.items.len()).find(|&at| self.items[at].is_some())
    }

    pub fn len(&self) -> usize {
        self.items.len() - self.vacant.len()
    }
}
