// Makes a table or line of elements one Tab stop; arrow keys move within it.

const MOVES = {
  ArrowLeft: [0, -1],
  ArrowRight: [0, 1],
  ArrowUp: [-1, 0],
  ArrowDown: [1, 0],
};

const listeners = new WeakMap(); // by container, to remove those of its previous content

// `rows` are lists of focusable elements; Tab focuses `start`. Returns a signal that aborts when the
// container gets new content.
export function moveByArrows(container, rows, start = rows[0]?.[0], moved = () => {}) {
  const places = new Map();
  rows.forEach((row, i) => row.forEach((element, j) => places.set(element, [i, j])));
  let current = start;
  for (const element of places.keys()) element.tabIndex = element === start ? 0 : -1;

  const set = (element) => {
    current.tabIndex = -1;
    current = element;
    current.tabIndex = 0;
  };
  listeners.get(container)?.abort();
  listeners.set(container, new AbortController());
  const { signal } = listeners.get(container);
  container.addEventListener(
    "focusin",
    (event) => {
      if (places.has(event.target)) set(event.target);
    },
    { signal },
  );
  const move = (event) => {
    const place = places.get(event.target);
    if (!place || event.ctrlKey || event.altKey || event.metaKey) return;
    let [i, j] = place;
    if (event.key in MOVES) {
      const [down, right] = MOVES[event.key];
      // In a single row, up and down move along it too.
      j += rows.length === 1 ? down + right : right;
      i += rows.length === 1 ? 0 : down;
    } else if (event.key === "Home") j = 0;
    else if (event.key === "End") j = rows[i].length - 1;
    else return;
    event.preventDefault();
    i = Math.min(Math.max(i, 0), rows.length - 1);
    j = Math.min(Math.max(j, 0), rows[i].length - 1);
    rows[i][j].focus();
    moved(rows[i][j]);
  };
  container.addEventListener("keydown", move, { signal });
  return signal;
}
