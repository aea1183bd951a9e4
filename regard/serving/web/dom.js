// What every component needs: elements, and the right moment.

/** An element: h("button", {class: "quiet", onclick: f, "aria-label": "…"}, "text", child). */
export const h = (tag, attributes = {}, ...children) => {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children);
  return element;
};

/** Make `parent` have one child for each item, keeping those there are: focus stays, and nothing flickers. */
export const sync = (parent, items, create, update) => {
  while (parent.children.length > items.length) parent.lastElementChild.remove();
  items.forEach((item, index) => {
    if (!parent.children[index]) parent.append(create(index));
    update(parent.children[index], item, index);
  });
};

/** `callback` once, `wait` ms after the last call; a wait of 0 calls at once. */
export const debounced = (callback) => {
  let timer = 0;
  return (wait) => {
    clearTimeout(timer);
    if (wait) timer = setTimeout(callback, wait);
    else callback();
  };
};

/** `callback` when nothing else is going on, but within half a second: a busy browser may never find a better moment. */
export const idle = (callback) =>
  window.requestIdleCallback ? window.requestIdleCallback(callback, { timeout: 500 }) : setTimeout(callback);
