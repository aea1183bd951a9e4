// Which words of two translations differ: pure functions.

/** The words of an output: [{text, space}], its tokens put together by their word numbers. */
export const wordsOf = (tokens) => {
  const words = [];
  let last = null;
  for (const { text, space, word, special } of tokens) {
    if (special) continue;
    if (words.length && word !== null && word === last) words.at(-1).text += text;
    else words.push({ text, space: Boolean(space) });
    last = word;
  }
  return words;
};

/** Which words of `a` and of `b` are not in their longest common part: two lists of booleans. */
export const differing = (a, b) => {
  const common = Array.from({ length: a.length + 1 }, () => new Uint16Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; i -= 1) {
    for (let j = b.length - 1; j >= 0; j -= 1) {
      const [skip, over] = [common[i + 1][j], common[i][j + 1]];
      common[i][j] = a[i].text === b[j].text ? common[i + 1][j + 1] + 1 : Math.max(skip, over);
    }
  }
  const [gone, come] = [a.map(() => true), b.map(() => true)];
  for (let i = 0, j = 0; i < a.length && j < b.length; ) {
    if (a[i].text === b[j].text) gone[i++] = come[j++] = false;
    else if (common[i + 1][j] >= common[i][j + 1]) i += 1;
    else j += 1;
  }
  return [gone, come];
};

/** Put `words` into `element`, the marked ones in elements of `tag` (del, ins); neighbours share one. */
export const write = (element, words, marks, tag) => {
  const parts = [];
  words.forEach(({ text, space }, k) => {
    const glue = space && k ? " " : "";
    if (marks[k] && marks[k - 1]) parts.at(-1).append(glue + text);
    else if (marks[k]) {
      const mark = document.createElement(tag);
      mark.append(text);
      parts.push(glue, mark);
    } else parts.push(glue + text);
  });
  element.replaceChildren(...parts);
};
