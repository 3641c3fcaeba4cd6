// Keeps the end of the conversation in view while text comes, until the reader scrolls up.

const AT_END_PX = 40;

// Connects the scrolled element, what grows in it, and the button that leads back to the end.
export class EndKeeper {
  #isAtEnd = true;
  #lastTop = 0;

  constructor(scroller, content, button) {
    this.scroller = scroller;
    this.button = button;
    scroller.addEventListener("scroll", () => this.#noticeScroll(), { passive: true });
    button.addEventListener("click", () => this.goToEnd());
    new ResizeObserver(() => this.#isAtEnd && this.goToEnd()).observe(content);
  }

  goToEnd() {
    this.#isAtEnd = this.button.hidden = true;
    this.scroller.scrollTop = this.scroller.scrollHeight;
    this.#lastTop = this.scroller.scrollTop;
  }

  // Only the reader scrolls up: text that comes can make the page longer, but never moves it back.
  #noticeScroll() {
    const { scrollTop, scrollHeight, clientHeight } = this.scroller;
    if (scrollHeight - scrollTop - clientHeight < AT_END_PX) this.#isAtEnd = true;
    else if (scrollTop < this.#lastTop) this.#isAtEnd = false;
    this.button.hidden = this.#isAtEnd;
    this.#lastTop = scrollTop;
  }
}
