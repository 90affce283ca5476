package io.hiroma.jvm;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.lang.reflect.Proxy;
import org.junit.jupiter.api.Test;

class PageMapTest {
  private static final int ENOTTY = 25;

  /** The native calls of this JVM on a kernel whose answer to {@code PAGEMAP_SCAN} is {@code scanned}. */
  private static NativeCalls kernel(int scanned) {
    return (NativeCalls) Proxy.newProxyInstance(PageMapTest.class.getClassLoader(), new Class<?>[] {NativeCalls.class},
        (proxy, method, arguments) -> method.getName().equals("scan") ? scanned : method.invoke(Natives.calls(), arguments));
  }

  @Test
  void aKernelThatDoesNotTellIsNamed() {
    PageMap old = new PageMap(kernel(-ENOTTY));
    assertTrue(old.problem().contains("Linux 6.7") && old.problem().contains("error " + ENOTTY), old::problem);
    assertThrows(IllegalStateException.class, () -> old.huge(0, 4096));
    assertEquals("", new PageMap(kernel(0)).problem());
  }
}
